"""Lets the daemon find out how many workers streams are to have: looks at each, asks its tuner, and tells the engine.

It decides nothing itself: prefetchd/tuning/ does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.telemetry.stats_sampler import StatsSampler
from prefetchd.ring.memory_limits import left_bytes
from prefetchd.supervisor.backend import Backend
from prefetchd.supervisor.process_memory import private_bytes
from prefetchd.tuning.worker_memory import SHARE, SPARE, Memory, is_too_large, most_workers
from prefetchd.tuning.worker_tuner import Change, Room, WorkerTuner

MOST_WORKERS = 64
"""The most workers that a stream gets without being asked: each is a process."""
MEMORY_EVERY_S = 5.0
WEIGHED_EVERY_S = 30.0
WEIGHED_AT_ONCE = 4
"""To weigh a worker with torch in it takes 6 ms: the kernel walks through all that it has mapped."""


class WorkerAutotune:
    """Tunes the streams of one daemon whose loaders have left it open. `note` is told of each change."""

    def __init__(
        self,
        engine: Engine,
        stats: StatsSampler,
        backend: Backend,
        cpus: int,
        worker_memory_bytes: int | None,
        note: Callable[[StreamState, Change, float], None],
    ) -> None:
        self._engine = engine
        self._stats = stats
        self._backend = backend
        self._cpus = cpus
        self._note = note
        # Bounds are shares of what is free before there are workers (decision 0114).
        free_bytes = left_bytes()
        self._is_bound_said = worker_memory_bytes is not None
        self._bound_bytes = worker_memory_bytes if worker_memory_bytes is not None else int(SHARE * free_bytes)
        self._spare_bytes = int(SPARE * free_bytes)
        self._tuners: dict[int, WorkerTuner] = {}
        self._worker_bytes: dict[int, int] = {}
        self._free_bytes = free_bytes
        self._looked_s = self._cpu_over_s = 0.0
        self._weighed_s: dict[int, float] = {}

    def look(self, now_s: float) -> None:
        """Looks at all streams, and changes what is to be changed. To be called several times a second, after the
        sampler has observed them."""
        # A tuner judges when CPUs have been looked at. Between, there is nothing to be seen.
        is_look, self._cpu_over_s = self._stats.looked_s > self._cpu_over_s, self._stats.looked_s
        if not is_look:
            return
        streams = self._engine.streams
        for gone in [number for number in self._tuners if number not in streams]:
            self._forget(gone)
        tuned = []
        for stream in streams.values():
            if self._engine.is_tuned(stream):
                tuned.append(stream)
            elif stream.number in self._tuners:
                self._forget(stream.number)
                self._engine.tune(stream.number, 0)
        if tuned and now_s - self._looked_s >= MEMORY_EVERY_S:
            self._looked_s = now_s
            self._look_at_memory(tuned)
        for stream in tuned:
            self._tune(stream, now_s)

    def _forget(self, number: int) -> None:
        del self._tuners[number]
        self._worker_bytes.pop(number, None)
        self._weighed_s.pop(number, None)

    def _look_at_free(self) -> None:
        # Without a descriptor left nobody can look.
        with contextlib.suppress(OSError):
            self._free_bytes = left_bytes()

    def _look_at_memory(self, tuned: list[StreamState]) -> None:
        """Notes what is free, and now and then what a worker of each stream costs."""
        self._look_at_free()
        for stream in tuned:
            if self._looked_s - self._weighed_s.get(stream.number, -WEIGHED_EVERY_S) < WEIGHED_EVERY_S:
                continue
            self._weigh(stream)
            if self._is_bound_said:
                why = is_too_large(self._worker_bytes.get(stream.number, 0), self._bound_bytes)
                if why:
                    self._engine.fail(stream.number, f"stream {stream.name!r} can have no worker: {why}")

    def _weigh(self, stream: StreamState, workers: int = 1) -> None:
        """Notes the most that one of the stream's workers had, of which so many are looked at, each time others."""
        ready = [each for each in stream.workers.values() if each.stage is WorkerStage.READY]
        first = int(self._looked_s / WEIGHED_EVERY_S)
        for at in range(first, first + min(workers, len(ready))):
            found = private_bytes(self._backend.pid(ready[at % len(ready)].number))
            if found is not None:
                self._worker_bytes[stream.number] = max(found, self._worker_bytes.get(stream.number, 0))
                self._weighed_s[stream.number] = self._looked_s

    def _measured(self, stream: StreamState, tuner: WorkerTuner) -> Room:
        """Returns the room for the stream's workers, of which several are looked at: one that has just begun may be
        smaller than it will be."""
        self._look_at_free()
        self._weigh(stream, WEIGHED_AT_ONCE)
        return self._room(stream, tuner)

    def _tune(self, stream: StreamState, now_s: float) -> None:
        history = self._stats.history(stream.number)
        if history is None:
            return
        tuner = self._tuners.get(stream.number)
        if tuner is None:
            tuner = self._tuners[stream.number] = WorkerTuner(
                self._engine.pool.worker_limit(stream), stream.schedule.rows_per_batch
            )
        at_work = sum(each.stage is WorkerStage.READY for each in stream.workers.values())
        if at_work < len(stream.workers) or stream.paused:
            # Some begin or end, or none has anything to do.
            at_work = 0
        sums = history.sums()
        room = self._room(stream, tuner)
        change = tuner.observe(sums, at_work, room, now_s, lambda: self._measured(stream, tuner))
        if change is None:
            return
        self._free_bytes -= (change.workers - change.before) * self._worker_bytes.get(stream.number, 0)
        self._note(stream, change, now_s)
        self._engine.tune(stream.number, change.workers)

    def _room(self, stream: StreamState, tuner: WorkerTuner) -> Room:
        """Returns what the stream's workers may have: CPUs that trainers leave, processes that there is memory for."""
        load = self._stats.load()
        trainers = load["trainers"] if load is not None else 0.0
        cpus = max(1.0, self._cpus - trainers)
        worker_bytes = self._worker_bytes.get(stream.number)
        if worker_bytes is None:
            # Nobody knows yet what one costs: that is measured before there are more.
            most, why = MOST_WORKERS, ""
        else:
            taken_bytes = sum(self._worker_bytes.get(number, 0) * each.workers for number, each in self._tuners.items())
            memory = Memory(self._bound_bytes, taken_bytes, self._free_bytes, self._spare_bytes)
            most, why = most_workers(tuner.workers, worker_bytes, memory)
        limit = self._engine.pool.limit
        if limit and limit < most:
            is_said = limit == self._engine.limits.workers
            most, why = limit, f"`[daemon] workers` allows {limit}" if is_said else "workers were killed for memory"
        return Room(cpus, min(most, MOST_WORKERS), why)
