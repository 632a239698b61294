"""What workers print, shown to the stream's trainers as far as the rate allows."""

from __future__ import annotations

import time

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.shell.publishing import Publishing
from prefetchd.wire.messages import Output

OUTPUT_LINES_A_SECOND = 20
# So that a second's lines fit into one packet.
OUTPUT_LINE_BYTES = 3000


class WorkerOutput:
    """Text for the people behind trainers."""

    def __init__(self, engine: Engine, publishing: Publishing) -> None:
        self._engine = engine
        self._publishing = publishing
        self._rate = OutputRate()

    def tell(self, stream: int, worker: int, text: str, *, topic: str = "") -> None:
        """Shows `text` to the stream's trainers, to each process once for each `topic`; what is beyond the rate counts.
        Never blocks."""
        found = self._engine.streams.get(stream)
        if found is None or self._publishing.listener is None:
            return
        kept, dropped = self._rate.admit(stream, text)
        if not kept:
            return
        for number in found.consumers:
            self._publishing.send_if_clear(number, Output(worker, kept, dropped, topic))

    def forget(self, stream: int) -> None:
        """The stream is gone."""
        self._rate.forget(stream)


class OutputRate:
    """Keeps what a stream prints to its trainer down to a few lines a second."""

    def __init__(self) -> None:
        self._windows: dict[int, tuple[float, int, int]] = {}

    def admit(self, stream: int, text: str) -> tuple[str, int]:
        """What of `text` may go on now, and how many lines were dropped since the last that did."""
        now_s = time.monotonic()
        began_s, lines, dropped = self._windows.get(stream, (now_s, 0, 0))
        if now_s - began_s >= 1.0:
            began_s, lines = now_s, 0
        kept = []
        for line in text.split("\n"):
            if lines < OUTPUT_LINES_A_SECOND:
                kept.append(line.encode("utf-8", "replace")[:OUTPUT_LINE_BYTES].decode("utf-8", "ignore"))
                lines += 1
            else:
                dropped += 1
        told = dropped if kept else 0
        self._windows[stream] = (began_s, lines, dropped - told)
        return "\n".join(kept), told

    def forget(self, stream: int) -> None:
        """The stream is gone."""
        self._windows.pop(stream, None)
