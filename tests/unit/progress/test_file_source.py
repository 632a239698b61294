"""The progress file on a real file system: however it is written, whatever becomes of it."""

from __future__ import annotations

import os
import time

import pytest

from prefetchd.daemon.process.loop import Loop
from prefetchd.progress.file_source import FileSource

# So long that nothing is found by it here.
NO_POLL_S = 1000.0


class Watched:
    """A source on a loop, and where it went."""

    def __init__(self, path, poll_s):
        self.loop = Loop()
        self.went = []
        self.path = path
        self.source = FileSource(str(path), poll_s, self.loop, self._moved)
        self._wanted = lambda: True
        self.loop.after_each(self._look)

    def _moved(self, position):
        self.went.append(position)

    def _look(self):
        if self._wanted() or time.monotonic() > self._deadline_s:
            self.loop.stop()

    def until(self, wanted):
        """Runs the loop until wanted()."""
        self._wanted, self._deadline_s = wanted, time.monotonic() + 20
        self.loop.run()
        assert wanted(), (self.went, self.source.complaint)

    def goes_to(self, position):
        self.until(lambda: self.went[-1:] == [position])

    def close(self):
        self.source.close()
        self.loop.close()


@pytest.fixture(params=[NO_POLL_S, 0.02], ids=["watched", "polled"])
def watched(request, tmp_path, monkeypatch):
    if request.param != NO_POLL_S:
        monkeypatch.setattr("prefetchd.progress.file_source.DirectoryWatch", _no_watch)
    found = Watched(tmp_path / "progress.txt", request.param)
    found.until(lambda: found.source._watch is not None or request.param != NO_POLL_S)
    yield found
    found.close()


def _no_watch(directory):
    raise OSError(95, "NFS does not tell")


def test_a_file_that_comes_late_grows_and_is_replaced(watched):
    assert watched.source.position is None
    watched.path.write_text("0\n200\n")
    watched.goes_to((0, 200))
    with watched.path.open("w") as file:
        for part in ("0", "\n4", "00", "\n"):
            file.write(part)
            file.flush()
    watched.goes_to((0, 400))
    other = watched.path.with_name("other")
    other.write_text("1\n0\n")
    os.replace(other, watched.path)
    watched.goes_to((1, 0))
    assert watched.source.unreadable == 0


def test_back_and_without_an_end(watched):
    watched.path.write_text("5\n9\n")
    watched.goes_to((5, 9))
    watched.path.write_text("5\n4")
    watched.goes_to((5, 4))


def test_deleted_and_made_again(watched):
    watched.path.write_text("5\n9\n")
    watched.goes_to((5, 9))
    watched.path.unlink()
    watched.path.write_text("5\n10\n")
    watched.goes_to((5, 10))


def test_rubbish_is_counted_and_shown(watched):
    watched.path.write_text("5\n9\n")
    watched.goes_to((5, 9))
    watched.path.write_text("what\n")
    watched.until(lambda: watched.source.unreadable == 1)
    assert "what" in watched.source.complaint
    assert watched.source.position == (5, 9)
    watched.path.write_text("5\n10\n")
    watched.goes_to((5, 10))
    assert watched.source.complaint == ""


def test_what_cannot_be_read_at_all_is_counted_and_shown(watched):
    watched.path.mkdir()
    watched.until(lambda: watched.source.unreadable == 1)
    assert "directory" in watched.source.complaint.lower()
    # Looked at again it is no other mistake.
    watched.source._look()
    assert watched.source.unreadable == 1
    watched.path.rmdir()
    watched.until(lambda: not watched.source.complaint)
    watched.path.mkdir()
    watched.until(lambda: watched.source.unreadable == 2)
    watched.path.rmdir()
    watched.path.write_text("5\n9\n")
    watched.goes_to((5, 9))
    assert watched.source.unreadable == 2
    assert watched.source.complaint == ""


class Silent:
    """A watch that can be had and says nothing, as on NFS when another machine writes."""

    def __init__(self, directory):
        self.fd, self._other = os.pipe()

    def close(self):
        os.close(self.fd)
        os.close(self._other)


def test_a_watch_that_says_nothing_is_not_relied_on(tmp_path, monkeypatch):
    monkeypatch.setattr("prefetchd.progress.file_source.DirectoryWatch", Silent)
    watched = Watched(tmp_path / "progress.txt", 0.02)
    try:
        watched.until(lambda: watched.source._watch is not None)
        watched.path.write_text("0\n200\n")
        watched.goes_to((0, 200))
        watched.path.write_text("0\n45")
        watched.goes_to((0, 45))
        watched.path.write_text("what\n")
        watched.until(lambda: watched.source.unreadable == 1)
    finally:
        watched.close()


def test_a_directory_that_comes_late_is_found(tmp_path):
    watched = Watched(tmp_path / "later" / "progress.txt", 0.02)
    try:
        watched.path.parent.mkdir()
        watched.path.write_text("0\n1\n")
        watched.goes_to((0, 1))
        watched.path.unlink()
        watched.path.parent.rmdir()
        watched.path.parent.mkdir()
        watched.path.write_text("0\n2\n")
        watched.goes_to((0, 2))
    finally:
        watched.close()


def test_closed_it_tells_nothing(watched):
    watched.source.close()
    watched.path.write_text("0\n1\n")
    turns = iter(range(3))
    watched.loop.call_later(0.06, lambda: None)
    watched.until(lambda: next(turns, None) is None)
    assert watched.went == []
