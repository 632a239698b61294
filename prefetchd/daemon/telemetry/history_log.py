"""Writes the history file: what each stream did, every 10 s, and what was known of it when it ended (decision 0151)."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefetchd.diagnosis.judged import judged_streams
from prefetchd.status.points import StreamPoints
from prefetchd.wire.history_file import POINTS_EVERY_S, former, line_of

log = logging.getLogger("prefetchd")

MOST_BYTES = 2 << 20
MOST_KEPT_BYTES = 32 << 20
"""Bounds of each of the two files: beside the socket, which may be in memory, and at `[daemon] history`."""


class HistoryLog:
    """Appends to one history file. Never raises for a file that cannot be written: the log has the reason once."""

    def __init__(self, path: Path, *, kept: bool) -> None:
        """`kept`: the file outlives the daemon, and may be larger."""
        self.path = path
        self._is_kept = kept
        self._most_bytes = MOST_KEPT_BYTES if kept else MOST_BYTES
        self._points: dict[str, StreamPoints] = {}
        self._last: dict[str, dict[str, Any]] = {}
        self._next_s = 0.0
        self._has_complained = False

    def note(self, snapshot: Mapping[str, Any], now_s: float) -> None:
        """Write a line if one is due. To be called with each snapshot; a call that writes nothing compares names."""
        names = {stream["name"] for stream in snapshot["streams"]}
        ended = [name for name in self._last if name not in names]
        if now_s < self._next_s and not ended:
            return
        entries: list[dict[str, Any]] = []
        taken_s = snapshot["taken_unix_s"]
        for name in ended:
            entries.append({"t": taken_s, "ended": self._last.pop(name)})
            self._points.pop(name, None)
        if now_s >= self._next_s:
            self._next_s = now_s + POINTS_EVERY_S
            self._last = {stream["name"]: stream for stream in judged_streams(snapshot)}
            rows = {
                name: self._points.setdefault(name, StreamPoints()).point(stream, taken_s, now_s)[1:]
                for name, stream in self._last.items()
            }
            if rows:
                entries.append({"t": round(taken_s, 2), "points": rows})
        self._append(b"".join(line_of(each) for each in entries))

    def close(self, *, drop: bool) -> None:
        """End the history. With `drop` the files go, unless they are kept for good."""
        self._append(b"".join(line_of({"t": time.time(), "ended": each}) for each in self._last.values()))
        self._last = {}
        if drop and not self._is_kept:
            for path in (self.path, former(self.path)):
                with contextlib.suppress(OSError):
                    os.unlink(path)

    def _append(self, data: bytes) -> None:
        if not data:
            return
        try:
            fd = os.open(
                self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600
            )
            try:
                if os.fstat(fd).st_size + len(data) > self._most_bytes:
                    os.rename(self.path, former(self.path))
                    full, fd = fd, os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                    os.close(full)
                os.write(fd, data)
            finally:
                os.close(fd)
        except OSError as error:
            if not self._has_complained:
                self._has_complained = True
                fields = {"path": str(self.path), "error": error.strerror or str(error)}
                log.warning("history cannot be written", extra={"fields": fields})
