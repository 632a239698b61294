"""Simulates a stream, its workers and its trainer, which takes samples in their order. Time goes by in small steps,
and CPUs are shared evenly."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from prefetchd.tuning.ring_tuner import RingChange, RingLook, RingTuner
from prefetchd.tuning.worker_tuner import Change, Room, Sums, WorkerTuner

STEP_S = 0.001
LOOK_EVERY_S = 0.25
CPU_EVERY_S = 1.0


@dataclasses.dataclass(frozen=True)
class Sample:
    """What a sample takes, in seconds: waiting, holding what all workers share, on a CPU."""

    waits_s: float = 0.0
    locked_s: float = 0.0
    cpu_s: float = 0.0


@dataclasses.dataclass
class _Worker:
    waits_s: float = 0.0
    locked_s: float = 0.0
    cpu_s: float = 0.0
    is_busy: bool = False
    number: int = 0
    task_s: float = 0.0
    ahead_s: float = 0.0
    """What of the last step was left when its sample was done."""


class Pipeline:
    """One stream. `draw` gives each sample, `step_s(now_s)` how long the trainer works on a batch."""

    def __init__(
        self,
        draw: Callable[[random.Random], Sample],
        step_s: Callable[[float], float] = lambda now_s: 0.0,
        *,
        cpus: int = 2,
        batch: int = 8,
        ring: int = 32,
        starts_s: float = 0.2,
        seed: int = 0,
    ) -> None:
        self._draw, self._step_s = draw, step_s
        self.cpus, self.batch, self.ring, self._starts_s = cpus, batch, ring, starts_s
        self._random = random.Random(seed)
        self.now_s = 0.0
        self._workers: list[_Worker] = []
        self._coming: list[float] = []
        # The samples that are ready, those taken by now, the next one's number; and those that came too early.
        self._ready = self._taken = self._next = 0
        self._early: set[int] = set()
        self._again: list[int] = []
        self._works_until_s = 0.0
        self._was_full = False
        self._longest_s = 0.0
        self._share = 1.0
        # What was seen of the CPUs at the last look.
        self._seen = dict.fromkeys(("cpu_s", "cpu_wait_s", "cpu_over_s"), 0.0)
        self._sums: dict[str, float] = dict.fromkeys((field.name for field in dataclasses.fields(Sums)), 0.0)

    @property
    def sums(self) -> Sums:
        whole = {name: int(self._sums[name]) for name in ("samples", "batches", "consumed", "bursts")}
        return Sums(**(self._sums | whole | self._seen))

    @property
    def ready_batches(self) -> float:
        return self._ready / self.batch

    @property
    def at_work(self) -> int:
        return len(self._workers)

    def take_longest_task_s(self) -> float:
        """Returns the longest task since the last call."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return longest_s

    def have(self, workers: int) -> None:
        """Starts or ends workers."""
        while len(self._workers) + len(self._coming) < workers:
            self._coming.append(self.now_s + self._starts_s)
        # Whoever ends finishes its sample elsewhere.
        self._again += [each.number for each in self._workers[workers:] if each.is_busy]
        del self._workers[workers:]

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self._step()

    def _step(self) -> None:
        self.now_s += STEP_S
        if self.now_s >= self._sums["cpu_over_s"] + CPU_EVERY_S:
            self._sums["cpu_over_s"] = self.now_s
            self._seen = {name: self._sums[name] for name in ("cpu_s", "cpu_wait_s", "cpu_over_s")}
        while self._coming and self._coming[0] <= self.now_s:
            self._coming.pop(0)
            self._workers.append(_Worker())
        self._trainer()
        for worker in self._workers:
            if not worker.is_busy and (self._again or self._next < self._taken + self.ring * self.batch):
                sample = self._draw(self._random)
                worker.waits_s, worker.locked_s, worker.cpu_s = sample.waits_s, sample.locked_s, sample.cpu_s
                if worker.waits_s > 0:
                    worker.waits_s -= worker.ahead_s
                elif not worker.locked_s:
                    worker.cpu_s -= worker.ahead_s * self._share
                worker.ahead_s = 0.0
                worker.is_busy, worker.task_s = True, 0.0
                worker.number = self._again.pop() if self._again else self._next
                self._next = max(self._next, worker.number + 1)
        runnable = [each for each in self._workers if each.is_busy and each.waits_s <= 0 and each.locked_s <= 0]
        share = self._share = min(1.0, self.cpus / len(runnable)) if runnable else 1.0
        in_line = [each for each in self._workers if each.is_busy and each.waits_s <= 0 < each.locked_s]
        locked = min(in_line, key=lambda each: each.number, default=None)
        for worker in self._workers:
            if not worker.is_busy:
                continue
            self._sums["fill_s"] += STEP_S
            worker.task_s += STEP_S
            self._longest_s = max(self._longest_s, worker.task_s)
            if worker.waits_s > 0:
                worker.waits_s -= STEP_S
                # The rest of the step is the CPU's.
                worker.cpu_s += min(0.0, worker.waits_s)
            elif worker is locked:
                worker.locked_s -= STEP_S
            elif worker.locked_s <= 0:
                worker.cpu_s -= STEP_S * share
                self._sums["cpu_s"] += STEP_S * share
                self._sums["cpu_wait_s"] += STEP_S * (1 - share)
                if worker.cpu_s <= 0:
                    worker.ahead_s, worker.is_busy = -worker.cpu_s / share, False
                    self._done(worker.number)
        self._sums["batches"] = self._sums["samples"] // self.batch
        is_empty = not self._ready and not self._early
        if not is_empty and self._next >= self._taken + self.ring * self.batch:
            self._sums["full_s"] += STEP_S
            self._was_full = True
        elif is_empty:
            self._sums["bursts"] += self._was_full
            self._was_full = False

    def _done(self, number: int) -> None:
        """Those before it have to be there, too."""
        self._sums["samples"] += 1
        self._early.add(number)
        while self._taken + self._ready in self._early:
            self._early.remove(self._taken + self._ready)
            self._ready += 1

    def _trainer(self) -> None:
        self._sums["consumer_s"] += STEP_S
        if self.now_s < self._works_until_s:
            return
        while self._ready >= self.batch and self.now_s >= self._works_until_s:
            self._ready -= self.batch
            self._taken += self.batch
            self._sums["consumed"] += 1
            self._works_until_s = self.now_s + self._step_s(self.now_s)
        if self.now_s >= self._works_until_s:
            self._sums["stalled_s"] += STEP_S


class Tuned:
    """A pipeline under a tuner. `changes` has what that has decided, and when."""

    def __init__(self, pipeline: Pipeline, *, start: int = 2, most: int = 64) -> None:
        self.pipeline = pipeline
        self.tuner = WorkerTuner(start, samples_a_batch=pipeline.batch)
        self.room = Room(float(pipeline.cpus), most, "no more are allowed")
        self.measure: Callable[[], Room] = lambda: self.room
        self.changes: list[tuple[float, Change]] = []
        pipeline.have(start)

    def run(self, seconds: float) -> None:
        pipeline = self.pipeline
        until_s = pipeline.now_s + seconds
        while pipeline.now_s < until_s:
            pipeline.run(LOOK_EVERY_S)
            change = self.tuner.observe(pipeline.sums, pipeline.at_work, self.room, pipeline.now_s, self.measure)
            if change is not None:
                self.changes.append((pipeline.now_s, change))
                pipeline.have(change.workers)

    def changes_after(self, at_s: float) -> list[tuple[float, Change]]:
        return [each for each in self.changes if each[0] > at_s]

    def made_per_s(self, seconds: float) -> float:
        """Runs it, and returns the batches a second that the trainer got."""
        before = self.pipeline.sums.consumed
        self.run(seconds)
        return (self.pipeline.sums.consumed - before) / seconds


class TunedRing:
    """A pipeline of so many workers under a tuner of its ring. `changes` has what that has decided, and when."""

    def __init__(self, pipeline: Pipeline, *, workers: int = 2, most: int = 1000, least: int = 4) -> None:
        self.pipeline, self.most, self.least = pipeline, most, least
        self.tuner = RingTuner()
        self.changes: list[tuple[float, RingChange]] = []
        pipeline.have(workers)

    def run(self, seconds: float) -> None:
        pipeline = self.pipeline
        until_s = pipeline.now_s + seconds
        while pipeline.now_s < until_s:
            pipeline.run(LOOK_EVERY_S)
            longest_s = pipeline.take_longest_task_s()
            look = RingLook(pipeline.sums, pipeline.at_work, pipeline.ring, pipeline.ready_batches, longest_s)
            change = self.tuner.observe(look, lambda: self.most, pipeline.now_s, lambda: self.least)
            if change is not None:
                self.execute(change)

    def execute(self, change: RingChange) -> None:
        self.changes.append((self.pipeline.now_s, change))
        self.pipeline.ring = change.batches

    def stalled(self, seconds: float) -> float:
        """Runs it, and returns which share of its time the trainer waited."""
        before = self.pipeline.sums
        self.run(seconds)
        after = self.pipeline.sums
        return (after.stalled_s - before.stalled_s) / (after.consumer_s - before.consumer_s)


def made_per_s(pipeline: Pipeline, seconds: float) -> float:
    """Runs the pipeline as it is, and returns the batches a second that the trainer got."""
    before = pipeline.sums.consumed
    pipeline.run(seconds)
    return (pipeline.sums.consumed - before) / seconds
