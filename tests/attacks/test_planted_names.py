"""Names in shared memory that somebody else has made: everybody may make names there."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path

import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.daemon.segments.recovery import empty_programs, find_streams, reclaim_programs
from prefetchd.daemon.segments.resources import SegmentNames
from prefetchd.ring.segment import _make
from prefetchd.wire.own_segments import find_status, make_named
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, runtime_paths
from tests.attacks.another_user import as_nobody, as_root
from tests.scenario.datasets import Numbers
from tests.scenario.waiting import report_when

SHM = Path("/dev/shm")


@contextlib.contextmanager
def planted(paths):
    """plant(name, make) makes a name; all of them are gone afterwards."""
    names = []

    def plant(name, make):
        names.append(SHM / name.lstrip("/"))
        make(names[-1])

    try:
        yield plant
    finally:
        for path in names:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink(missing_ok=True)


def touch(path):
    path.write_bytes(b"\0" * 4096)


def open_to_all(path):
    touch(path)
    path.chmod(0o666)


def link_to_itself(path):
    path.symlink_to(path)


def fifo(path):
    os.mkfifo(path, 0o666)


KINDS = [touch, open_to_all, link_to_itself, fifo, Path.mkdir]


def of(make):
    """The same by another user."""
    return lambda path: as_nobody(lambda: make(path))


def check_that_it_serves(daemon):
    loader = PrefetchLoader(Numbers(16), batch_size=4)
    try:
        assert len(list(loader)) == 4
    finally:
        loader.close()
    assert report_when(daemon, lambda report: report.state == "running", "it runs").snapshot["daemon"]["pid"]


@as_root
@pytest.mark.parametrize("kind", KINDS)
def test_names_of_another_user_stop_no_daemon(daemon, kind):
    """Neither when it starts, nor while it runs, nor the next one."""
    prefix = f"{SEGMENT_PREFIX}{daemon.paths.instance}-"
    with planted(daemon.paths) as plant:
        for name in ("status", "ring-1", "program-1", "status-1"):
            plant(prefix + name, of(kind))
        daemon.start()
        for number in range(1, 4):
            plant(f"{prefix}ring-{daemon.pid:x}-{number}", of(kind))
            plant(f"{prefix}program-{os.getpid():x}-{number}", of(kind))
        check_that_it_serves(daemon)
        assert json.loads(daemon.command("status", "--json").stdout)["state"] == "running"
        daemon.command("doctor", "--fix", check=False)
        daemon.command("stop")
        check_that_it_serves(daemon)
        daemon.command("stop")


@pytest.mark.parametrize("kind", KINDS)
def test_odd_names_of_our_own_stop_no_daemon(daemon, kind):
    prefix = f"{SEGMENT_PREFIX}{daemon.paths.instance}-"
    with planted(daemon.paths) as plant:
        for name in ("status-1", "ring-1", "program-1"):
            plant(prefix + name, kind)
        find_streams(daemon.paths, 1)
        empty_programs(daemon.paths)
        reclaim_programs(daemon.paths)
        check_that_it_serves(daemon)
        daemon.command("stop")


@as_root
def test_another_user_s_status_is_not_found(daemon):
    with planted(daemon.paths) as plant:
        plant(daemon.paths.status_segment, of(open_to_all))
        assert find_status(daemon.paths) == []
        assert json.loads(daemon.command("status", "--json", check=False).stdout)["state"] == "absent"


def test_a_name_that_is_taken_after_all_is_followed_by_another(daemon):
    names = iter(["taken", "taken", "free"])
    with planted(daemon.paths) as plant:
        plant(daemon.paths.segment_name("ring", "taken"), touch)
        found = make_named(
            (daemon.paths.segment_name("ring", token) for token in names),
            lambda name: os.close(_make(name, "/dev/shm")),
        )
        plant(found[0], touch)
    assert found[0] == daemon.paths.segment_name("ring", "free")


def test_nobody_knows_a_name_beforehand(tmp_path):
    names = SegmentNames(runtime_paths(tmp_path / "s"))
    found = {names.next_ring() for _ in range(100)}
    assert len(found) == 100
    assert all(re.fullmatch(r".*-ring-[0-9a-f]{8}", name) for name in found)
