"""Decides which reads of a progress file count: the file may be read while it is being written. Pure; time is an
argument. Decision 0041 has the reasons.

A complete text that lies ahead of the last position counts at once: nobody must wait for batches because of our doubts,
and the worst that it costs is work that is done again. Anything else may be half of something: "45" the beginning of
"4567", an old line under a new one. It counts when it is read once more SETTLE_S later and is still the same, and so
does what cannot be read at all: then it is a complaint, and the last position stays.
"""

from __future__ import annotations

from collections.abc import Callable

from prefetchd.progress.two_lines import parse
from prefetchd.wire.stream_spec import Position

SETTLE_S = 0.05


class Settling:
    """The reads of one file. `position` is the last that counted; `unreadable` counts the texts that did not make
    sense, and `complaint` says what is wrong with the present one.

    `in_plan` gives the position that a text stands for, or why there is none: a batch beyond its epoch.
    """

    def __init__(self, in_plan: Callable[[Position], Position | str] = lambda position: position) -> None:
        self.position: Position | None = None
        self.unreadable = 0
        self.complaint = ""
        self._in_plan = in_plan
        self._seen: bytes | None = None
        self._seen_s = 0.0
        self._done: bytes | None = None

    def read(self, content: bytes | None, now_s: float) -> Position | None:
        """Takes what was read at `now_s`; None when the file is not there. Returns the position to go to, or None:
        nowhere new."""
        if content is None:
            # Missing at first, or deleted: nothing is said, and that is no mistake.
            self._seen = self._done = None
            self.complaint = ""
            return None
        if content == self._done:
            self._seen = None
            return None
        if content != self._seen:
            self._seen, self._seen_s = content, now_s
        settled = now_s - self._seen_s >= SETTLE_S
        found = self._understood(content)
        if isinstance(found, str):
            if settled:
                self.unreadable += 1
                self.complaint = found
                self._done, self._seen = content, None
            return None
        position, complete = found
        ahead = self.position is None or position >= self.position
        if not settled and not (complete and ahead):
            return None
        self.complaint = ""
        self._done, self._seen = content, None
        if position == self.position:
            return None
        self.position = position
        return position

    @property
    def look_again(self) -> bool:
        """True while the last read waits for another like it, SETTLE_S after the first."""
        return self._seen is not None

    def _understood(self, content: bytes) -> tuple[Position, bool] | str:
        found = parse(content)
        if isinstance(found, str):
            return found
        position = self._in_plan(found[0])
        return position if isinstance(position, str) else (position, found[1])
