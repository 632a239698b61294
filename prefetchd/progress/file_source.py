"""Follows a consumer that writes where it stands into a file (two_lines). The file is watched, and read again and
again, because not every file system reports changes that another machine makes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable

from prefetchd.progress.inotify import DELETE_SELF, IGNORED, MOVE_SELF, DirectoryWatch
from prefetchd.progress.settling import SETTLE_S, Settling
from prefetchd.progress.source import Moved, Timers
from prefetchd.progress.two_lines import LONGEST_BYTES
from prefetchd.wire.stream_spec import Position


class FileSource:
    """A progress file as a Source. The file may be missing, late, or replaced; its directory too."""

    def __init__(
        self,
        path: str,
        poll_s: float,
        timers: Timers,
        moved: Moved,
        in_plan: Callable[[Position], Position | str] = lambda position: position,
    ) -> None:
        """Reads the file once: what it says by now is `position`. `moved` is called from the loop of `timers`, never
        from here. `in_plan` as in Settling."""
        self.path = path
        self._name = os.path.basename(path)
        self._poll_s = poll_s
        self._timers = timers
        self._moved = moved
        self._settling = Settling(in_plan)
        self._watch: DirectoryWatch | None = None
        self._why = ""
        self._unread = 0
        self._open = True
        self._looks_again = False
        self._settling.read(self._content(), time.monotonic())
        timers.call_later(0.0, self._poll)

    @property
    def position(self) -> Position | None:
        return self._settling.position

    @property
    def unreadable(self) -> int:
        return self._settling.unreadable + self._unread

    @property
    def complaint(self) -> str:
        return self._why or self._settling.complaint

    def close(self) -> None:
        self._open = False
        self._unwatch()

    def _poll(self) -> None:
        if not self._open:
            return
        if self._watch is None:
            # Before the look: what changes after it is told.
            with contextlib.suppress(OSError):
                self._watch = DirectoryWatch(os.path.dirname(self.path))
                self._timers.watch(self._watch.fd, self._directory_changed)
        self._look()
        self._timers.call_later(self._poll_s, self._poll)

    def _directory_changed(self) -> None:
        assert self._watch is not None
        masks, names = 0, set()
        for mask, name in self._watch.changes():
            masks |= mask
            names.add(name)
        if masks & (DELETE_SELF | MOVE_SELF | IGNORED):
            # The directory has gone; the next poll watches the one that has come in its place.
            self._unwatch()
        if self._name in names or not self._watch:
            self._look()

    def _look(self) -> None:
        position = self._settling.read(self._content(), time.monotonic())
        if self._settling.look_again and not self._looks_again:
            self._looks_again = True
            self._timers.call_later(SETTLE_S, self._look_again)
        if position is not None:
            self._moved(position)

    def _look_again(self) -> None:
        self._looks_again = False
        if self._open:
            self._look()

    def _content(self) -> bytes | None:
        try:
            # It may be a pipe that nobody writes to.
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            self._why = ""
            return None
        except OSError as error:
            self._complain(f"it cannot be opened: {error.strerror}")
            return None
        try:
            content = os.read(fd, LONGEST_BYTES + 1)
            self._why = ""
            return content
        except OSError as error:
            self._complain(f"it cannot be read: {error.strerror}")
            return None
        finally:
            os.close(fd)

    def _complain(self, why: str) -> None:
        """Counts a complaint once, however often the file is read."""
        self._unread += why != self._why
        self._why = why

    def _unwatch(self) -> None:
        if self._watch is not None:
            self._timers.unwatch(self._watch.fd)
            self._watch.close()
            self._watch = None
