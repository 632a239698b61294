"""Finds out what a ring could do without. Pure; time is an argument.

Rules, whose reasons are in decision 0116
 1. What has not been needed for KEPT_S, in which trainers have not waited, is to spare: the batches that were always
    ready, less half of those that were needed. Others may have it when they need the memory.
 2. What is to spare is given back without being asked for, but for what trainers take in RUNWAY_S: that they live on
    when their workers die, and a batch for each worker. Not while trainers take nothing for so long: a pause says
    nothing of what they need. Nor is less than LEAST_SHARE of a ring given back. If trainers wait soon afterwards, that
    is done half as often.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from prefetchd.tuning.worker_tuner import KEPT_S, MOST_HOLD_S, Sums
from prefetchd.wire.records import record

RUNWAY_S = 10.0
"""How long trainers go on with what a ring keeps: a daemon that is killed, or all workers, are back sooner."""
LEAST_SHARE = 0.25
"""The share of a ring below which nothing is given back: it would change again and again, for little."""
ANOTHER_SHARE = 0.05
"""From which change of depth on a ring is another one; batches differ a little in length."""


@record
class _Moment:
    """What was seen in a second: the fewest batches that were ready, and how many trainers had taken by its end."""

    at_s: float
    ready_batches: float
    consumed: int


class RingSpare:
    """Watches one ring. `ring_batches` is how deep it is, `kept_s` how long something has not to be needed before it is
    given back."""

    def __init__(self) -> None:
        self.ring_batches = 0.0
        self.kept_s = KEPT_S
        # Of the seconds since trainers waited last, those of the last KEPT_S.
        self._calm: deque[_Moment] = deque()
        self._calm_since_s = self._taken_s = 0.0
        self._given_back_s = -math.inf
        self._stalled_s = 0.0

    def watch(self, sums: Sums, ring_batches: float, ready_batches: float, now_s: float) -> bool:
        """Notes what is seen now, to be called several times a second. True once a second: then there may be something
        to give back."""
        is_other = abs(ring_batches - self.ring_batches) > ANOTHER_SHARE * ring_batches
        waited = sums.stalled_s > self._stalled_s
        self._stalled_s = sums.stalled_s
        if is_other:
            self.ring_batches = ring_batches
        # Rule 2: that was too much. Once for each time that something was given back.
        if waited and now_s < self._given_back_s + self.kept_s:
            self.kept_s, self._given_back_s = min(2 * self.kept_s, MOST_HOLD_S), -math.inf
        if not self._calm or sums.consumed != self._calm[-1].consumed:
            self._taken_s = now_s
        if waited or is_other:
            self._calm.clear()
        if not self._calm or now_s - self._taken_s > RUNWAY_S:
            self._calm_since_s = now_s
        # Of each second the fewest ready batches count: at that moment no others were to spare.
        if self._calm and now_s - self._calm[-1].at_s < 1.0:
            last = self._calm.pop()
            self._calm.append(_Moment(last.at_s, min(last.ready_batches, ready_batches), sums.consumed))
            return False
        self._calm.append(_Moment(now_s, ready_batches, sums.consumed))
        while now_s - self._calm[0].at_s > KEPT_S:
            self._calm.popleft()
        return True

    @property
    def batches(self) -> int:
        """The batches that the ring could do without (rule 1)."""
        if not self._calm or self._calm[-1].at_s - self._calm[0].at_s < KEPT_S - 1:
            return 0
        always_ready = min(each.ready_batches for each in self._calm)
        needed = max(0.0, self.ring_batches - always_ready)
        return max(0, math.floor(always_ready - needed / 2) - 1)

    def unneeded_batches(self, workers: int, least_batches: Callable[[], int], now_s: float) -> int:
        """Returns how many batches are to be given back now (rule 2), by a ring that so many workers fill.
        `least_batches` finds out how many it must have."""
        if now_s - self._calm_since_s < self.kept_s:
            return 0
        least_given = LEAST_SHARE * self.ring_batches
        spare = self.batches
        if spare < least_given:
            return 0
        first, last = self._calm[0], self._calm[-1]
        taken_per_s = (last.consumed - first.consumed) / (last.at_s - first.at_s)
        left = max(workers + 1, math.ceil(RUNWAY_S * taken_per_s), least_batches())
        unneeded = min(spare, math.floor(self.ring_batches) - left)
        if unneeded < least_given:
            return 0
        self._given_back_s = now_s
        return unneeded

    def clear(self) -> None:
        """Forgets what was ready: the ring becomes another one."""
        self._calm.clear()
