"""Watches processes that have closed the last loader of a stream and live on: the engine is told when they end.
Decision 0094 has the reasons."""

from __future__ import annotations

import os
from functools import partial

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.process.loop import Loop


class Leavers:
    """Keeps one descriptor for each stream that such a process has left, as long as no other trainer comes."""

    def __init__(self, loop: Loop, engine: Engine) -> None:
        self._loop = loop
        self._engine = engine
        self._pidfds: dict[int, int] = {}

    def watch(self, stream: int, pidfd: int) -> None:
        """Watches the process of `pidfd`, which has left the stream. A copy is kept; `pidfd` stays the caller's."""
        self._forget(stream)
        try:
            kept = os.dup(pidfd)
        except OSError:
            # Out of descriptors: the process is taken to have ended.
            self._engine.leaver_ended(stream)
            return
        self._pidfds[stream] = kept
        self._loop.watch(kept, partial(self._ended, stream))

    def _ended(self, stream: int) -> None:
        self._forget(stream)
        self._engine.leaver_ended(stream)

    def _forget(self, stream: int) -> None:
        pidfd = self._pidfds.pop(stream, None)
        if pidfd is not None:
            self._loop.unwatch(pidfd)
            os.close(pidfd)

    def look(self) -> None:
        """Forgets processes whose stream is gone, or consumed again. To be called now and then."""
        for number in list(self._pidfds):
            stream = self._engine.streams.get(number)
            if stream is None or not (stream.lingers and stream.leaver_lives):
                self._forget(number)

    def close(self) -> None:
        """Forgets all processes."""
        for stream in list(self._pidfds):
            self._forget(stream)
