"""What the page is given while the segment that it is read from changes, ends or makes no sense."""

from __future__ import annotations

import os
from contextlib import contextmanager

import pytest

from prefetchd.daemon.segments.status_segment import StatusSegment
from prefetchd.dashboard.watcher import Watcher
from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.status_layout import LAYOUT_VERSION
from tests.unit.cli.examples import report, stream


@pytest.fixture
def published(tmp_path):
    """A segment of a daemon that this process is; its file, and a watcher of it."""
    tmp_path.chmod(0o700)
    paths = runtime_paths(str(tmp_path / "d.sock"))
    segment = StatusSegment(paths, 1)
    try:
        yield segment, Watcher(paths, no_trace), f"/dev/shm/{segment.name}"
    finally:
        segment.close()


@contextmanager
def no_trace():
    raise OSError("no daemon answers")
    yield


def publish(segment, *streams, **daemon):
    snapshot = report(*streams).snapshot
    about = process_stat(os.getpid())
    assert snapshot is not None
    assert about is not None
    snapshot["daemon"] |= {"pid": os.getpid(), "start_ticks": about.start_ticks, **daemon}
    segment.write(snapshot)


def test_stream_that_ends_keeps_its_last_status(published):
    segment, watcher, _ = published
    publish(segment, stream(name="one"), stream(name="other"))
    watcher.look()
    assert watcher.document("one")["details"]["one"]["ended"] is False
    publish(segment, stream(name="other"))
    watcher.look()
    found = watcher.document("one")
    assert found["ended"] == ["one"]
    assert found["details"]["one"]["ended"] is True
    assert found["details"]["one"]["status"]["verdict"]["text"]
    publish(segment, stream(name="one"))
    watcher.look()
    assert watcher.document("one")["ended"] == ["other"], "it has come back"


def test_segment_of_another_layout_is_one_line(published):
    segment, watcher, file = published
    publish(segment, stream())
    with open(file, "r+b") as changed:
        changed.seek(8)
        changed.write((LAYOUT_VERSION + 1).to_bytes(4, "little"))
    watcher.look()
    found = watcher.document("")
    assert f"version {LAYOUT_VERSION + 1}" in found["headline"]["text"]
    assert (found["headline"]["word"], found["streams"]) == ("Not known", [])


@pytest.mark.parametrize("part", ["ring", "segment_bytes"])
def test_snapshot_without_what_the_page_needs_is_one_line(published, part):
    segment, watcher, _ = published
    unlike = stream()
    del (unlike if part in unlike else unlike["ring"])[part]
    publish(segment, unlike)
    watcher.look()
    found = watcher.document("")
    assert f"does not say '{part}': it is of another version" in found["headline"]["text"]
    publish(segment, stream())
    watcher.look()
    assert watcher.document("")["headline"]["word"] != "Not known"
