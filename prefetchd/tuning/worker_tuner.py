"""Decides, from second to second, how many workers a stream has that was not told. Pure; time is an argument.

Rules, whose reasons are in decision 0114
 1. What is judged is a span of at least LOOK_S in which all its workers were at work, and made FEWEST_SAMPLES.
 2. More come where trainers wait for more than STALLED_SHARE of their time and workers hardly idle: as many as their
    demand takes, or, where they show no pace of their own, as are worth having (throughput.py). At most STEP times as
    many at once, and no more than the room allows.
 3. What came is on trial. It stays when trainers no longer wait, or when it brought HELPED_SHARE of what it could have;
    if TRIAL_S have not shown that, the number before comes back, and no more are tried for HOLD_S; twice as long after
    each such trial, until samples have become other ones.
 4. Fewer are kept when trainers have not waited for KEPT_S, in which fewer would have been enough: as many as that
    took. If they wait soon afterwards, that is tried half as often.
 5. More than the room allows go at once, and for HOLD_S no others come. Before more come the room is measured anew:
    what a worker takes may have been found out only now.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from prefetchd.tuning.throughput import MOST_BUSY, BatchCost, throughput, useful_workers, workers_for
from prefetchd.wire.records import record

LOOK_S = 0.9
"""A little less than the second between two looks at the CPUs."""
FEWEST_SAMPLES = 8
STALLED_SHARE = 0.02
"""The share of its time below which a trainer does not wait in earnest."""
BUSY_SHARE = 0.75
"""The share from which on workers have no time left."""
WAITS_ALWAYS_SHARE = 0.95
"""The share of waiting from which on a trainer has shown no pace of its own."""
STEP = 4
WORTH_IT = 1.1
"""How many times as many workers there must be to be worth a trial when no number would be enough."""
TRIAL_S = 5.0
HELPED_SHARE = 0.2
EVIDENT_SHARE = 0.5
"""The share of what more workers could have brought from which on one span is enough to believe it."""
HOLD_S = 60.0
MOST_HOLD_S = 3600.0
KEPT_S = 60.0
FEWER_EVERY_S = 10.0
OTHER_SAMPLES = 1.5
"""How many times as long samples take that are other ones, or how many times as much of a CPU; or the other way."""


@record
class Sums:
    """What a stream has done by now; all of it only grows. Seconds are those of workers in tasks (`fill_s`), on CPUs
    and in line for one, and of trainers: all of their time, and what of it they have waited for batches. What workers
    have of CPUs is looked at now and then: up to `cpu_over_s`. `full_s` is how long there was nothing to fill that the
    ring had room for, `bursts` how often a full ring became empty."""

    samples: int = 0
    batches: int = 0
    consumed: int = 0
    fill_s: float = 0.0
    cpu_s: float = 0.0
    cpu_wait_s: float = 0.0
    consumer_s: float = 0.0
    stalled_s: float = 0.0
    cpu_over_s: float = 0.0
    full_s: float = 0.0
    bursts: int = 0


@record
class Room:
    """What a stream's workers may have: `cpus` of those that there are, and `workers` at most, for the reason `why`."""

    cpus: float
    workers: int
    why: str


@record
class Change:
    """A decision: from now on the stream has `workers`, where it had `before`, for the reason `why`."""

    before: int
    workers: int
    why: str


@record
class _Span:
    """What was seen in a span of `over_s` seconds."""

    over_s: float
    samples_per_s: float
    consumed_per_s: float
    cost: BatchCost
    busy: float
    stalled: float
    is_consumed: bool

    @property
    def demand_per_s(self) -> float:
        """Samples a second that trainers would take if they never waited, as far as they have shown it."""
        return self.consumed_per_s / max(1.0 - self.stalled, 1.0 - WAITS_ALWAYS_SHARE)


@record
class _Trial:
    """More workers on trial: how many there were `before`, and what those made."""

    before: int
    span: _Span


class WorkerTuner:
    """Tunes one stream. `workers` is how many it is to have."""

    def __init__(self, workers: int, samples_a_batch: float) -> None:
        self.workers = workers
        self._samples_a_batch = samples_a_batch
        self._measure: Callable[[], Room] = lambda: Room(1.0, 1, "")
        self._begin: tuple[float, Sums] | None = None
        self._looked_s = 0.0
        self._trial: _Trial | None = None
        self._no_more_until_s = -math.inf
        self._hold_s = HOLD_S
        self._held_cost: BatchCost | None = None
        self._full_until_s = -math.inf
        # Since trainers waited last, or since a change: when a span began, and how many workers it took.
        self._calm: deque[tuple[float, float]] = deque()
        self._kept_s = KEPT_S
        self._lowered_s = -math.inf

    def observe(
        self, sums: Sums, at_work: int, room: Room, now_s: float, measure: Callable[[], Room] | None = None
    ) -> Change | None:
        """Takes what the stream has done by now, by `at_work` workers; says what is to change. To be called once a
        second or more often. `measure` finds out the room anew (rule 5)."""
        self._measure = measure or (lambda: room)
        if self.workers > max(1, room.workers):
            self._full_until_s, self._trial = now_s + HOLD_S, None
            return self._change(max(1, room.workers), room.why)
        if at_work != self.workers:
            self._begin = None
            return None
        # A span begins and ends when CPUs are looked at: else what they did would be of another span.
        is_look, self._looked_s = sums.cpu_over_s > self._looked_s, sums.cpu_over_s
        if not is_look:
            return None
        if self._begin is None:
            self._begin = (now_s, sums)
            return None
        span = self._judged(sums, now_s)
        if span is None:
            return None
        if self._trial is not None:
            # Over all of the trial: its begin stays until it is judged.
            return self._judge_trial(self._trial, span, room, now_s)
        self._begin = (now_s, sums)
        return self._more(span, room, now_s) or self._fewer(span, now_s)

    def _judged(self, sums: Sums, now_s: float) -> _Span | None:
        """Returns what was seen since the span's begin; None while that is too little (rule 1)."""
        assert self._begin is not None
        begin_s, before = self._begin
        over_s = now_s - begin_s
        samples = sums.samples - before.samples
        fill_s = max(0.0, sums.fill_s - before.fill_s)
        # Idle workers make nothing that there could be enough of.
        if over_s < LOOK_S or (samples < FEWEST_SAMPLES and fill_s > (1 - BUSY_SHARE) * over_s * self.workers):
            return None
        cpu_s = max(0.0, sums.cpu_s - before.cpu_s)
        in_line_s = max(0.0, sums.cpu_wait_s - before.cpu_wait_s)
        # Workers run and stand in line between their tasks, too.
        task_s = max(fill_s - in_line_s, cpu_s)
        consumer_s = sums.consumer_s - before.consumer_s
        stalled_s = min(consumer_s, sums.stalled_s - before.stalled_s)
        return _Span(
            over_s,
            samples / over_s,
            (sums.consumed - before.consumed) * self._samples_a_batch / over_s,
            BatchCost(task_s / samples, cpu_s / samples) if samples else BatchCost(0.0, 0.0),
            fill_s / over_s / self.workers,
            stalled_s / consumer_s if consumer_s > 0 else 0.0,
            consumer_s > 0,
        )

    def _more(self, span: _Span, room: Room, now_s: float) -> Change | None:
        if span.stalled < STALLED_SHARE or span.busy < BUSY_SHARE or not span.samples_per_s:
            return None
        if now_s < self._lowered_s + self._kept_s:
            self._kept_s, self._lowered_s = 2 * self._kept_s, -math.inf
        if now_s < self._full_until_s or (now_s < self._no_more_until_s and not self._are_others(span)):
            return None
        useful = useful_workers(span.cost, room.cpus)
        wanted = useful
        if span.stalled <= WAITS_ALWAYS_SHARE:
            wanted = min(useful, workers_for(span.demand_per_s, span.cost))
        workers = min(math.ceil(min(wanted, STEP * self.workers)), room.workers)
        if workers <= self.workers or (wanted == useful and workers < WORTH_IT * self.workers):
            return None
        workers = min(workers, self._measure().workers)
        if workers <= self.workers:
            return None
        self._trial = _Trial(self.workers, span)
        waits = f"samples wait {span.cost.waiting_share:.0%} of their time"
        return self._change(workers, f"the trainer waited {span.stalled:.0%} of its time, and {waits}")

    def _judge_trial(self, trial: _Trial, span: _Span, room: Room, now_s: float) -> Change | None:
        could = min(self.workers / trial.before, throughput(self.workers, trial.span.cost, room.cpus) / _made(trial))
        brought = span.samples_per_s / trial.span.samples_per_s
        share = (brought - 1.0) / max(could - 1.0, 1e-9)
        if span.stalled < STALLED_SHARE or span.busy < BUSY_SHARE or share >= EVIDENT_SHARE:
            self._trial = None
            self._hold_s = HOLD_S
            return self._more(span, room, now_s)
        if span.over_s < TRIAL_S:
            return None
        self._trial = None
        if share >= HELPED_SHARE:
            return self._more(span, room, now_s)
        self._no_more_until_s = now_s + self._hold_s
        self._hold_s = min(2 * self._hold_s, MOST_HOLD_S)
        self._held_cost = trial.span.cost
        why = f"{self.workers} workers made {brought:.2f} times what {trial.before} made"
        return self._change(trial.before, why)

    def _fewer(self, span: _Span, now_s: float) -> Change | None:
        calm = self._calm
        if span.stalled >= STALLED_SHARE or not span.is_consumed:
            calm.clear()
            return None
        calm.append((now_s - span.over_s, span.busy * self.workers / MOST_BUSY))
        if now_s - calm[0][0] < self._kept_s:
            return None
        while len(calm) > 1 and now_s - calm[1][0] >= self._kept_s:
            calm.popleft()
        workers = max(1, math.ceil(max(took for _, took in calm)))
        if workers >= self.workers or now_s < self._lowered_s + FEWER_EVERY_S:
            return None
        self._lowered_s = now_s
        return self._change(workers, f"{workers} were enough in the last {self._kept_s:.0f} s")

    def _are_others(self, span: _Span) -> bool:
        """True when samples have become other ones since more workers did not help."""
        held = self._held_cost
        if held is None:
            return True
        pairs = ((span.cost.task_s, held.task_s), (span.cost.cpu_s, held.cpu_s))
        if any(max(pair) > OTHER_SAMPLES * min(pair) for pair in pairs):
            self._no_more_until_s, self._hold_s = -math.inf, HOLD_S
            return True
        return False

    def _change(self, workers: int, why: str) -> Change:
        change = Change(self.workers, workers, why)
        self.workers = workers
        self._begin = None
        if change.workers > change.before:
            self._calm.clear()
        return change


def _made(trial: _Trial) -> float:
    return max(trial.span.samples_per_s, 1e-9)
