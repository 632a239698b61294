"""Passes on what workers print: to the log as far as that has room for it, and to the stream's trainers as far as the
rate allows. What is left out is counted, and told."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.shell.publishing import Publishing
from prefetchd.daemon.telemetry.log_room import LOG_LINES_A_SECOND, LogRoom
from prefetchd.wire.messages import Output

OUTPUT_LINES_A_SECOND = 20
# So that a second's lines fit into one packet.
OUTPUT_LINE_BYTES = 3000

LEFT_OUT_EVERY_S = 10.0

log = logging.getLogger("prefetchd")


class WorkerOutput:
    """Shows the output of workers to the people behind trainers."""

    def __init__(self, engine: Engine, publishing: Publishing) -> None:
        self._engine = engine
        self._publishing = publishing
        self._rate = OutputRate()
        self._rooms: dict[int, LogRoom] = {}
        self._left_out: dict[int, int] = {}
        self._told_left_out_s: dict[int, float] = {}

    def printed(self, stream: int, worker: int, lines: Sequence[str], left_out: int, *, is_shown: bool = True) -> None:
        """Takes the `lines` that a worker has printed; `left_out` more were too many to be read. Trainers see them if
        `is_shown`. Never blocks."""
        found = self._engine.streams.get(stream)
        room = self._rooms.setdefault(stream, LogRoom()).admit(lines)
        name = found.name if found is not None else str(stream)
        for line in lines[:room]:
            log.info("output", extra={"fields": {"stream": name, "worker": worker, "line": line}})
        left_out += len(lines) - room
        if left_out:
            self._left_out[stream] = self._left_out.get(stream, 0) + left_out
            if found is not None:
                found.counters.lines_left_out += left_out
        if lines and is_shown:
            self.tell(stream, worker, "\n".join(lines))

    def tell(self, stream: int, worker: int, text: str, *, topic: str = "") -> None:
        """Shows `text` to the stream's trainers, to each process once for each `topic`; what is beyond the rate counts.
        Never blocks."""
        if stream not in self._engine.streams or self._publishing.listener is None:
            return
        kept, dropped = self._rate.admit(stream, text)
        if kept is not None:
            self._send(stream, Output(worker, kept, dropped, topic))

    def tick(self, now_s: float) -> None:
        """Says how many lines are in no log. To be called now and then."""
        for stream, lines in list(self._left_out.items()):
            found = self._engine.streams.get(stream)
            if now_s - self._told_left_out_s.get(stream, -LEFT_OUT_EVERY_S) < LEFT_OUT_EVERY_S:
                continue
            del self._left_out[stream]
            self._told_left_out_s[stream] = now_s
            name = found.name if found is not None else str(stream)
            log.warning("output left out", extra={"fields": {"stream": name, "lines": lines}})
            text = (
                f"prefetchd: {lines} lines of its output are left out, of the log too: more than {LOG_LINES_A_SECOND} "
                "a second in the long run. Print less, or to a file of your own"
            )
            self._send(stream, Output(0, text))

    def forget(self, stream: int) -> None:
        """Forgets a stream that is gone."""
        self._rate.forget(stream)
        for each in (self._rooms, self._left_out, self._told_left_out_s):
            each.pop(stream, None)

    def _send(self, stream: int, message: Output) -> None:
        found = self._engine.streams.get(stream)
        # A copy: a session that cannot be sent to ends, and takes its consumer with it.
        for number in list(found.consumers) if found is not None else ():
            session = self._publishing.sessions.get(number)
            # A trainer that is about to be welcomed to a stream of others' reads nothing else before.
            if session is not None and session.is_welcomed:
                self._publishing.send_if_clear(number, message)


class OutputRate:
    """Keeps what a stream prints to its trainer down to a few lines a second."""

    def __init__(self) -> None:
        self._windows: dict[int, tuple[float, int, int]] = {}

    def admit(self, stream: int, text: str) -> tuple[str | None, int]:
        """Returns what of `text` may go on now, None if nothing may; and how many lines were dropped since the last
        that did."""
        now_s = time.monotonic()
        began_s, lines, dropped = self._windows.get(stream, (now_s, 0, 0))
        if now_s - began_s >= 1.0:
            began_s, lines = now_s, 0
        all_lines = text.split("\n")
        admitted = all_lines[: max(0, OUTPUT_LINES_A_SECOND - lines)]
        kept = [line.encode("utf-8", "replace")[:OUTPUT_LINE_BYTES].decode("utf-8", "ignore") for line in admitted]
        lines += len(kept)
        dropped += len(all_lines) - len(kept)
        told = dropped if kept else 0
        self._windows[stream] = (began_s, lines, dropped - told)
        return "\n".join(kept) if kept else None, told

    def forget(self, stream: int) -> None:
        """Forgets a stream that is gone."""
        self._windows.pop(stream, None)
