"""Decides how many batches deep a ring is that was not told. Pure; time is an argument.

Rules, whose reasons are in decision 0116
 1. A ring is judged over a span of LOOK_S at least, in which it has been full, empty, and half full again; or that is
    LONG_TASKS times as long as the longest task; or over KEPT_S. One that has changed has to be full first.
 2. It becomes deeper where trainers wait for more than STALLED_SHARE of their time though workers idle, as it is full
    at other times: by what workers made while trainers waited in a burst, RESERVE times (missing_batches). Where it
    lasts no longer than the longest task seen, twice what bridges that (bridging_batches). At most STEP times as deep
    at once, and no deeper than the room allows.
 3. What was added is on trial: if trainers wait for more than KEPT_SHARE of what they had waited (in a burst, or of
    their time), and do not get FASTER times as many batches, the depth before comes back, and no other is tried for
    HOLD_S; twice as long after each such trial.
 4. What trainers do not need is given back (ring_spare.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from prefetchd.tuning.ring_spare import RingSpare
from prefetchd.tuning.worker_tuner import BUSY_SHARE, HOLD_S, KEPT_S, MOST_HOLD_S, STALLED_SHARE, STEP, Sums
from prefetchd.wire.records import record

RESERVE = 1.25
"""How much more than what was missing in the mean burst a buffer should have: not all bursts are alike."""
SELDOM_FULL_SHARE = 0.02
"""The share of time with a full ring below which idle workers wait for tasks, not for room."""
LONG_TASK = 3.0
"""How many times as long as the mean task one is that a ring is to bridge."""
LONG_TASKS = 8
"""How many of the longest tasks may lie in a span."""
KEPT_SHARE = 0.8
FASTER = 1.1
LOOK_S = 3.0
"""The time below which nothing is judged."""


def missing_batches(stalled_s: float, bursts: int, supply_per_s: float) -> float:
    """Returns by how many batches a ring should be deeper that was empty so often while trainers waited so long in all,
    and workers made `supply_per_s`."""
    return RESERVE * stalled_s / bursts * supply_per_s


def bridging_batches(demand_per_s: float, longest_task_s: float, workers: int) -> int:
    """Returns how many batches trainers take during the longest task, and what other workers have under way."""
    return math.ceil(demand_per_s * longest_task_s) + workers + 1


@record
class RingLook:
    """What is seen at one moment: what the stream has done by now, by how many workers; how many batches its ring
    holds, how many of those are ready; the longest task since the look before, in seconds."""

    sums: Sums
    workers: int
    ring_batches: float
    ready_batches: float
    longest_task_s: float


@record
class RingChange:
    """A decision: from now on the ring holds `batches`, where it held `before`, for the reason `why`."""

    before: int
    batches: int
    why: str


@record
class _Span:
    """What was seen in a span of `over_s` seconds, as in Sums."""

    over_s: float
    consumer_s: float
    stalled_s: float
    full_s: float
    fill_s: float
    batches: int
    consumed: int
    bursts: int

    @property
    def stalled(self) -> float:
        return self.stalled_s / self.consumer_s if self.consumer_s > 0 else 0.0

    @property
    def consumed_per_s(self) -> float:
        return self.consumed / self.over_s

    @property
    def cost_s(self) -> float:
        """Worker-seconds a batch."""
        return self.fill_s / self.batches if self.batches else math.inf

    @property
    def demand_per_s(self) -> float:
        """Batches a second that trainers would take if they never waited."""
        return self.consumed / max(self.consumer_s - self.stalled_s, 0.01 * self.consumer_s)


@record
class _Trial:
    """A deeper ring on trial: how deep it was `before`, and what was seen then."""

    before: int
    span: _Span


class RingTuner:
    """Tunes the ring of one stream."""

    def __init__(self) -> None:
        self._begin: tuple[float, Sums] | None = None
        self._longest_task_s = 0.0
        self._trial: _Trial | None = None
        self._is_refilling = False
        self._no_more_until_s = -math.inf
        self._hold_s = HOLD_S
        self._spare = RingSpare()
        self.short_batches = 0
        """By how many batches the ring would have to be deeper than it may be; of the last look."""

    def observe(
        self, look: RingLook, most_batches: Callable[[], int], now_s: float, least_batches: Callable[[], int]
    ) -> RingChange | None:
        """Takes what is seen now; says what is to change. To be called several times a second. `most_batches` finds out
        what there is room for, `least_batches` how many the ring must have."""
        self.short_batches = 0
        is_second = self._spare.watch(look.sums, look.ring_batches, look.ready_batches, now_s)
        unneeded = self._spare.unneeded_batches(look.workers, least_batches, now_s) if is_second else 0
        if unneeded:
            enough = math.floor(self._spare.ring_batches) - unneeded
            return self.give_up(unneeded, f"{enough} were enough in the last {self._spare.kept_s:.0f} s")
        self._longest_task_s = max(self._longest_task_s, look.longest_task_s)
        if self._begin is None:
            self._restart(look.sums, now_s)
            return None
        begin_s, before = self._begin
        span = _span(before, look.sums, now_s - begin_s)
        if self._is_refilling:
            # Until it has been full nobody knows what its depth is worth.
            if span.full_s > 0 or span.over_s >= KEPT_S:
                self._is_refilling = False
                self._restart(look.sums, now_s)
            return None
        is_whole = span.bursts > 0 and look.ready_batches >= look.ring_batches / 2
        is_whole |= self._has_long_tasks(span) and span.over_s >= LONG_TASKS * self._longest_task_s
        if span.over_s < LOOK_S or not (is_whole or span.over_s >= KEPT_S):
            return None
        change = self._judge(span, look, most_batches, now_s)
        self._restart(look.sums, now_s)
        return change

    @property
    def spare_batches(self) -> int:
        """The batches that the ring could do without, for others that need the memory."""
        return self._spare.batches

    def give_up(self, batches: int, why: str) -> RingChange:
        """Has the ring hold so many batches less, for the reason `why`."""
        depth = math.floor(self._spare.ring_batches)
        self._begin, self._trial, self._is_refilling = None, None, False
        self._spare.clear()
        return RingChange(depth, depth - batches, why)

    def _restart(self, sums: Sums, now_s: float) -> None:
        self._begin, self._longest_task_s = (now_s, sums), 0.0

    def _judge(self, span: _Span, look: RingLook, most_batches: Callable[[], int], now_s: float) -> RingChange | None:
        trial, self._trial = self._trial, None
        depth = math.floor(look.ring_batches)
        if trial is not None:
            # Rule 3.
            waits, waited, figure = _waited(span, trial.span)
            is_better = span.stalled < STALLED_SHARE or waits <= KEPT_SHARE * waited
            if not is_better and span.consumed_per_s < FASTER * trial.span.consumed_per_s:
                self._no_more_until_s = now_s + self._hold_s
                self._hold_s = min(2 * self._hold_s, MOST_HOLD_S)
                now, then = (
                    f"{figure.format(waits)} with {depth} batches",
                    f"{figure.format(waited)} with {trial.before}",
                )
                return RingChange(depth, trial.before, f"the trainer waited {now}, and {then}")
            self._hold_s = HOLD_S
        # Rule 2.
        is_idle = span.fill_s < BUSY_SHARE * span.over_s * look.workers
        is_full = span.full_s >= SELDOM_FULL_SHARE * span.over_s
        if span.stalled < STALLED_SHARE or not (is_idle and is_full) or not span.batches or span.fill_s <= 0:
            return None
        if now_s < self._no_more_until_s:
            return None
        wanted, what = self._wanted(span, look)
        batches = math.ceil(min(wanted, STEP * look.ring_batches))
        if batches <= depth:
            return None
        most = max(depth, most_batches())
        self.short_batches = max(0, batches - most)
        batches = min(batches, most)
        if batches <= depth:
            return None
        self._trial, self._is_refilling = _Trial(depth, span), True
        why = f"the trainer waited {span.stalled:.0%} of its time, and workers idled: {what}"
        return RingChange(depth, batches, why)

    def _has_long_tasks(self, span: _Span) -> bool:
        return self._longest_task_s > LONG_TASK * span.cost_s

    def _wanted(self, span: _Span, look: RingLook) -> tuple[float, str]:
        """Returns how many batches the ring is to hold, and for people, what for (rule 2)."""
        bridging = bridging_batches(span.demand_per_s, self._longest_task_s, look.workers)
        if self._has_long_tasks(span) and bridging > look.ring_batches / 2:
            return 2.0 * bridging, f"tasks take up to {self._longest_task_s:.1f} s"
        if not span.bursts:
            return 0.0, ""
        missing = missing_batches(span.stalled_s, span.bursts, look.workers / span.cost_s)
        return look.ring_batches + missing + 1, f"the ring was full, and empty {span.bursts}x in {span.over_s:.0f} s"


def _waited(now: _Span, before: _Span) -> tuple[float, float, str]:
    """Returns what trainers waited now and before, and how such a figure is told: in each burst, as spans have more or
    less of what lies between bursts in them; of their time where one has no burst."""
    if now.bursts and before.bursts:
        return now.stalled_s / now.bursts, before.stalled_s / before.bursts, "{:.2f} s in each burst"
    return now.stalled, before.stalled, "{:.0%} of its time"


def _span(before: Sums, now: Sums, over_s: float) -> _Span:
    consumer_s = now.consumer_s - before.consumer_s
    return _Span(
        over_s,
        consumer_s,
        min(consumer_s, now.stalled_s - before.stalled_s),
        now.full_s - before.full_s,
        max(0.0, now.fill_s - before.fill_s),
        now.batches - before.batches,
        now.consumed - before.consumed,
        now.bursts - before.bursts,
    )
