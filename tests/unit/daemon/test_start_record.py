"""How a daemon was started is known to the next one on its socket, and to no other user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import click
import pytest

from prefetchd.cli.run import command as run
from prefetchd.daemon.start_record import USUAL, StartRecord, as_arguments, read_record, record_of, write_record
from prefetchd.wire.runtime_paths import RuntimePaths

OPTIONS = {
    "workers": 3,
    "autotune": False,
    "memory": 1 << 30,
    "nice": 4,
    "linger": 7.5,
    "ray_insecure": True,
    "reset_affinity": True,
    "name_waits_after": 3.0,
}


@pytest.fixture
def paths(tmp_path: Path) -> RuntimePaths:
    tmp_path.chmod(0o700)
    return RuntimePaths(tmp_path / "d.sock", tmp_path / "log")


def test_a_record_is_read_as_it_was_written(paths):
    variables = {"RAY_AUTH_TOKEN": "secret", "RAY_X": "\udcff", "HOME": "/root"}
    write_record(paths, record_of(OPTIONS, Path("/etc/p.toml"), "10.0.0.1:6379", variables))
    expected = {name: value for name, value in variables.items() if name != "HOME"}
    assert read_record(paths) == StartRecord({**OPTIONS, "ray": "10.0.0.1:6379"}, "/etc/p.toml", expected)
    assert stat.S_IMODE(paths.start_record.stat().st_mode) == 0o600
    assert os.listdir(paths.socket.parent) == [paths.start_record.name]


def test_variables_are_recorded_with_a_cluster_alone():
    assert record_of(OPTIONS, None, "", {"RAY_AUTH_TOKEN": "secret"}).variables == {}


def test_a_daemon_as_trainers_start_it_removes_a_record(paths):
    write_record(paths, record_of(OPTIONS, None, "", {}))
    write_record(paths, record_of(USUAL, None, "", {}))
    assert read_record(paths) is None
    assert os.listdir(paths.socket.parent) == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"options": 1, "config": "", "variables": {}}', b"\xff"])
def test_a_damaged_record_is_none(paths, content):
    paths.start_record.write_bytes(content)
    paths.start_record.chmod(0o600)
    assert read_record(paths) is None


@pytest.mark.parametrize("kind", ["writable", "link"])
def test_a_record_that_others_may_have_written_is_none(paths, kind):
    write_record(paths, record_of(OPTIONS, None, "", {}))
    if kind == "writable":
        paths.start_record.chmod(0o666)
    else:
        paths.start_record.rename(paths.socket.parent / "theirs")
        paths.start_record.symlink_to("theirs")
    assert read_record(paths) is None


def test_options_are_typed_as_the_command_reads_them():
    with click.Context(run) as ctx:
        parser = run.make_parser(ctx)
        values, rest, _ = parser.parse_args(args=as_arguments(OPTIONS))
        assert rest == []
        read = {name: run.params[[each.name for each in run.params].index(name)] for name in values}
        assert {name: read[name].type_cast_value(ctx, value) for name, value in values.items()} == {
            **OPTIONS,
            "memory": str(1 << 30),
        }
