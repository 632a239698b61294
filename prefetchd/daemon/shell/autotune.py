"""Lets the daemon find out what loaders have left open: how many workers a stream has, and how deep its ring is.

It notes what was changed and why, for status, traces and the log. What is changed is decided in prefetchd/tuning/.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.shell.ring_autotune import RingAutotune
from prefetchd.daemon.shell.worker_autotune import WorkerAutotune
from prefetchd.daemon.telemetry.stats_sampler import StatsSampler
from prefetchd.daemon.telemetry.tracing import Tracing
from prefetchd.supervisor.backend import Backend
from prefetchd.tuning.ring_tuner import RingChange
from prefetchd.tuning.worker_tuner import Change

CHANGES_KEPT = 8

log = logging.getLogger("prefetchd")


class Autotune:
    """Tunes the streams of one daemon."""

    def __init__(
        self,
        engine: Engine,
        stats: StatsSampler,
        backend: Backend,
        rings: StreamRings,
        tracing: Tracing,
        cpus: int,
        worker_memory_bytes: int | None,
    ) -> None:
        self._engine = engine
        self._tracing = tracing
        self._workers = WorkerAutotune(engine, stats, backend, cpus, worker_memory_bytes, self._note)
        self._rings = RingAutotune(engine, stats, rings, self._note)
        self._changes: dict[int, deque[tuple[float, Change | RingChange]]] = {}

    def look(self, now_s: float) -> None:
        """Looks at all streams, and changes what is to be changed. To be called several times a second, after the
        sampler has observed them."""
        self._changes = {number: each for number, each in self._changes.items() if number in self._engine.streams}
        self._workers.look(now_s)
        self._rings.look(now_s)

    def tell(self, snapshot: dict[str, Any]) -> None:
        """Adds to each stream of the snapshot, in the engine's order, whether it is tuned, and its last changes."""
        now_s = time.monotonic()
        for stream, found in zip(self._engine.streams.values(), snapshot["streams"]):
            found["tuned"] = self._engine.is_tuned(stream)
            found["buffer_tuned"] = self._engine.is_ring_tuned(stream)
            found["tuning"] = [_about(now_s - at_s, change) for at_s, change in self._changes.get(stream.number, ())]

    def _note(self, stream: StreamState, change: Change | RingChange, now_s: float) -> None:
        self._changes.setdefault(stream.number, deque(maxlen=CHANGES_KEPT)).append((now_s, change))
        about = {"stream": stream.name, **_about(0.0, change)}
        del about["ago_s"]
        if isinstance(change, Change):
            self._tracing.tuned(stream, change)
            del about["batches"]
            log.info("workers tuned", extra={"fields": about})
        else:
            self._tracing.resized(stream, change)
            del about["workers"]
            log.info("buffer tuned", extra={"fields": about})


def _about(ago_s: float, change: Change | RingChange) -> dict[str, Any]:
    return {
        "ago_s": ago_s,
        "before": change.before,
        "workers": change.workers if isinstance(change, Change) else None,
        "batches": change.batches if isinstance(change, RingChange) else None,
        "why": change.why,
    }
