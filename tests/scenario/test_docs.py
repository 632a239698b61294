"""What docs/status.md promises to machines, and what systemd/ would run, with real daemons."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import jsonschema
import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.cli.control_client import ANSWER_TIMEOUT_S
from prefetchd.cli.ending import STOP_TIMEOUT_S
from prefetchd.cli.main import VERBS, cli
from prefetchd.daemon.service import STATUS_INTERVAL_S
from prefetchd.diagnosis.health import EXIT_CODES
from prefetchd.status.snapshot import HANGING_AFTER_S
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.status_layout import SNAPSHOT_VERSION
from tests.scenario.declared_datasets import slow
from tests.scenario.waiting import stream_when
from tests.unit.docs.status_keys import SCHEMA, documented_keys

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "status.md").read_text("utf-8")

# Null at first, or on a machine that is slow just now; or without a cluster.
DEPENDS = re.compile(r"verdict|recent|runway_s|busy_share|pss_bytes|^load$|remote\.receiving")

KINDS: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float,),
    "str": (str,),
    "bool": (bool,),
    "list": (list,),
    "object": (dict,),
    "null": (type(None),),
}


def nodes(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every (path, value) below `value`."""
    found = []
    if isinstance(value, dict):
        for key, inner in value.items():
            found += [(path + key, inner), *nodes(inner, f"{path}{key}.")]
    elif isinstance(value, list):
        for inner in value:
            found += nodes(inner, path.removesuffix(".") + "[].")
    return found


def status(daemon) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(daemon.command("status", "--json", check=False).stdout)
    return found


def verb_named(name: str) -> click.Command | None:
    return cli.get_command(click.Context(cli), name)


class Unloadable:
    def __init__(self):
        self.length = 4

    def __setstate__(self, state):
        raise ValueError("cannot be loaded")

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


def test_a_snapshot_has_the_documented_keys_and_no_others(daemon, monkeypatch):
    documented = documented_keys()
    config = daemon.socket.with_name("streams.toml")
    config.write_text('[streams.declared]\ndataset = "tests.scenario.declared_datasets:failing"\n')
    absent = status(daemon)
    daemon.start("--config", str(config))
    assert absent == {"state": "absent", "health": "absent", "heartbeat_age_s": None, "problems": []}
    with PrefetchLoader(slow(40, sample_s=0.1), batch_size=4, buffer=6, stream="good", remote_workers=2) as good:
        kept = next(iter(good))
        stream_when(daemon, "good", lambda stream: stream["paces"], "its workers were busy")
        monkeypatch.setenv("PREFETCHD_START", "exec")
        with PrefetchLoader(Unloadable(), batch_size=2, buffer=6, stream="bad"):
            stream_when(daemon, "good", lambda stream: stream["consumers"][0].get("held"), "its batch is held")
            stream_when(daemon, "bad", lambda stream: stream["stage"] == "failed", "it has failed")
            with PrefetchLoader(slow(40, sample_s=0), batch_size=4, stream="left") as left:
                next(iter(left))
            stream_when(daemon, "left", lambda stream: stream["lingering"], "its trainer has gone")
            stream_when(daemon, "good", lambda stream: stream["recent"] and stream["workers"], "it has a past")
            found = status(daemon)
        del kept
    seen = [*nodes(absent), *nodes(found)]
    paths = {path for path, _ in seen}
    # Nothing is tuned here, and there is no cluster: test_autotune.py and tests/cluster have these.
    elsewhere = ("streams[].tuning[].", "streams[].remote.nodes[].")
    missing = {path for path in documented.keys() - paths if not path.startswith(elsewhere)}
    assert not missing, "documented and not there"
    assert not {path for path, value in seen if not isinstance(value, dict)} - documented.keys(), "not documented"
    for path, value in seen:
        allowed = [kind for name in documented.get(path, "object").split(" or ") for kind in KINDS[name]]
        assert type(value) in allowed, f"{path} is {value!r}"
    for path, kinds in documented.items():
        if path in paths and kinds.endswith(" or null") and not DEPENDS.search(path):
            assert {type(value) is type(None) for each, value in seen if each == path} == {True, False}, path
    for each in (absent, found):
        jsonschema.validate(each, json.loads(SCHEMA.read_text("utf-8")))
    assert found["snapshot_version"] == SNAPSHOT_VERSION == 1
    assert "cannot be loaded" in found["streams"][1]["failure"]


def test_exit_codes_are_those_that_are_documented(daemon):
    rows = re.findall(r"^\| (`[\w ,`-]+`)? ?\| (\d+) \| ", TEXT.split("\n## Exit codes")[1], re.M)
    documented: dict[str, set[int]] = {}
    verbs: list[str] = []
    for name, number in rows:
        verbs = re.findall(r"`([^`]+)`", name) or verbs
        for verb in verbs:
            documented.setdefault(verb, set()).add(int(number))
    assert {name.split()[0] for name in documented} == set(VERBS)
    groups = {verb: command for verb in VERBS if isinstance(command := verb_named(verb), click.Group)}
    sub_verbs = {f"{group} {verb}" for group, command in groups.items() for verb in command.commands}
    assert {name for name in documented if name.split()[0] in groups} == sub_verbs
    assert documented["status"] == {1, *EXIT_CODES.values()}
    assert documented["cache build"] == {0, 1, 130}

    empty = daemon.socket.with_name("empty.toml")
    empty.write_text("")

    def code(*arguments: str) -> int:
        returned = daemon.command(*arguments, check=False).returncode
        verb = " ".join(arguments[:2])
        expected = documented[verb if verb in documented else arguments[0]]
        assert returned in expected or returned == 2, arguments
        return returned

    assert code("status") == 4
    assert code("stop") == 0
    assert code("logs") == 1
    assert code("pause") == code("resume") == code("drain") == code("evict", "x") == code("log-level", "info") == 1
    assert code("trace") == 1
    assert code("docs") == code("docs", "status") == 0
    assert code("docs", "no-such-page") == 1
    assert code("run", "--workers", "0") == 2
    assert code("config", "check", str(empty)) == 0
    assert code("config", "check", "/no/such/file") == 1
    assert code("cache", "build", "no.such:module", "/no/such/path") == 1
    assert code("cache", "ls", "/no/such/path") == code("cache", "verify", "/no/such/path") == 0
    assert code("cache", "rm", "/no/such/path", "--all") == 0
    assert code("cache", "rm", "/no/such/path", "0") == code("cache", "verify", "/no/such/path", "0") == 1
    assert code("warm", "--config", "/no/such/file") == 1
    assert code("restart") == code("reload") == code("reload", "--config", "/dev/null") == 1
    assert code("run", "--detach") == 0
    assert code("run", "--detach") == 0
    assert code("run") == 1
    assert code("status") == 0
    assert code("logs") == 0
    assert code("pause") == code("resume") == code("drain") == code("log-level", "info") == 0
    assert code("pause", "nobody") == code("drain", "nobody") == code("evict", "nobody") == 1
    assert code("reload") == code("reload", "--config", "/no/such/file") == 1
    assert code("restart") == code("stop", "--keep") == 0
    assert code("run", "--detach") == 0
    assert code("stop", "--now") == 0
    assert code("status") == 4


def test_numbers_in_the_text():
    assert f"wrote no snapshot for {HANGING_AFTER_S:.0f} s" in TEXT
    assert f"not answer within {ANSWER_TIMEOUT_S:.0f} s, or is not gone {STOP_TIMEOUT_S:.0f} s after" in TEXT
    assert STATUS_INTERVAL_S == 0.25
    assert "four times a second" in TEXT


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_unit_s_command_ends_in_order(number):
    unit = (ROOT / "prefetchd" / "units" / "prefetchd.service").read_text("utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", unit, re.M)
    _, *arguments = shlex.split(line)
    with tempfile.TemporaryDirectory(prefix="pfd-") as directory:
        # What a user's service manager gives to a service, and no more.
        environment = {"HOME": directory, "XDG_RUNTIME_DIR": directory, "PATH": os.defpath, "LANG": "C.UTF-8"}
        paths = runtime_paths(env=environment)
        process = subprocess.Popen(
            [sys.executable, "-m", "prefetchd", *arguments],
            env=environment,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            assert json.loads(process.stderr.readline())["event"] == "started"
            assert paths.socket.is_socket()
            process.send_signal(number)
            _, said = process.communicate(timeout=20)
        finally:
            process.kill()
        assert process.returncode == 0
        assert [json.loads(each)["event"] for each in said.splitlines()] == ["stopping", "stopped"]
        assert list(paths.socket.parent.iterdir()) == []
        assert [name for name in os.listdir("/dev/shm") if paths.instance in name] == []
