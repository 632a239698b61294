"""Reads what a child prints from its pipe: whole lines, a bounded part of it a turn and a second.

1. A turn reads one chunk: whoever prints without end does not keep the daemon's loop.
2. Of a second's output so many lines and bytes are passed on; what is beyond that is read, counted and left out.
3. Of what is left out so much is read a second. Then the pipe is left alone until the second is over, and the child
   waits in write(2), as it would for a slow terminal.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from prefetchd.supervisor.backend import Watcher

CHUNK_BYTES = 65536
LINES_A_SECOND = 2000
SHOWN_BYTES_A_SECOND = 1 << 20
READ_BYTES_A_SECOND = 16 << 20
LAST_WORDS_BYTES = 1 << 20
"""The most that is read at a child's death: a pipe has no more, unless a process that the child has left still
prints."""

OnOutput = Callable[[list[str], int], None]
"""Called with lines, and with how many were left out since the last call."""


class ChildOutput:
    """The reading end of one child's pipe, which it takes over; watched until close()."""

    def __init__(self, watcher: Watcher, fd: int, on_output: OnOutput) -> None:
        self.on_output = on_output
        self._watcher = watcher
        self._fd = fd
        self._partial = b""
        self._is_cut = False
        self._began_s = watcher.now_s()
        self._lines = self._shown_bytes = self._read_bytes = 0
        self._is_open = self._is_watched = True
        os.set_blocking(fd, False)
        watcher.watch(fd, self._readable)

    def last_words(self) -> None:
        """Reads what a child that has died still has in its pipe."""
        most_bytes = LAST_WORDS_BYTES
        while self._is_open and most_bytes > 0:
            chunk = self._read()
            if not chunk:
                break
            most_bytes -= len(chunk)

    def close(self) -> None:
        """Closes the pipe. Idempotent."""
        if self._is_open:
            self._unwatch()
            self._is_open = False
            os.close(self._fd)

    def _readable(self) -> None:
        self._read()
        left_s = self._began_s + 1.0 - self._watcher.now_s()
        if self._read_bytes >= READ_BYTES_A_SECOND and self._is_watched and left_s > 0:
            self._unwatch()
            self._watcher.call_later(left_s, self._go_on)

    def _go_on(self) -> None:
        if self._is_open and not self._is_watched:
            self._is_watched = True
            self._watcher.watch(self._fd, self._readable)

    def _unwatch(self) -> None:
        if self._is_watched:
            self._is_watched = False
            self._watcher.unwatch(self._fd)

    def _read(self) -> bytes:
        """Reads one chunk; empty when there is nothing, or never will be."""
        try:
            chunk = os.read(self._fd, CHUNK_BYTES)
        except BlockingIOError:
            return b""
        if chunk:
            self._take(chunk)
            return chunk
        self._unwatch()
        rest, self._partial = self._partial, b""
        if rest:
            self.on_output([_text(rest)], 0)
        return b""

    def _take(self, chunk: bytes) -> None:
        now_s = self._watcher.now_s()
        if now_s - self._began_s >= 1.0:
            self._began_s = now_s
            self._lines = self._shown_bytes = self._read_bytes = 0
        self._read_bytes += len(chunk)
        if self._lines >= LINES_A_SECOND or self._shown_bytes >= SHOWN_BYTES_A_SECOND:
            # A line that was begun is left out whole, and so is the end of one that has no room any more.
            self._partial, self._is_cut = b"", chunk[-1:] != b"\n"
            self.on_output([], chunk.count(b"\n"))
            return
        *lines, self._partial = (self._partial + chunk).split(b"\n")
        left_out = 0
        if self._is_cut and lines:
            del lines[0]
            left_out, self._is_cut = 1, False
        elif self._is_cut:
            self._partial = b""
        if len(self._partial) > CHUNK_BYTES:
            lines.append(self._partial)
            self._partial = b""
        # Rule 2: the first so many lines of the second are shown, the rest counted.
        shown = lines[: LINES_A_SECOND - self._lines]
        left_out += len(lines) - len(shown)
        self._lines += len(shown)
        self._shown_bytes += sum(map(len, shown))
        if shown or left_out:
            self.on_output([_text(line) for line in shown], left_out)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def silent(_lines: list[str], _left_out: int) -> None:
    """Drops the output."""
