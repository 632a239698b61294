"""Turns a stream's last minute into rates: what was made, consumed and waited for, second by second. Pure.

observe() is given the stream's running counts several times a second; one sample a second is kept.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from prefetchd.wire.records import record

SAMPLE_EVERY_S = 1.0
KEPT_SAMPLES = 60


@record
class Counts:
    """A stream's running counts at one instant; those of time in seconds, over all workers or consumers.

    `ready_share` is the part of the ring's slots whose batches are ready; `is_full`: there is nothing to fill that
    there is room for. `consumers` has for each that has got a batch (its number, what next() has waited in it by now).
    `longest_task_s` is the longest task since the last observation.
    """

    batches: int = 0
    samples: int = 0
    consumed: int = 0
    fill_s: float = 0.0
    cpu_s: float = 0.0
    cpu_wait_s: float = 0.0
    ready_share: float = 0.0
    is_full: bool = False
    consumers: tuple[tuple[int, float], ...] = ()
    longest_task_s: float = 0.0


@record
class _Sample:
    at_s: float
    batches: int
    samples: int
    consumed: int
    fill_s: float
    cpu_s: float
    cpu_wait_s: float
    consumer_s: float
    stalled_s: float
    full_s: float
    empty_s: float
    longest_task_s: float


class History:
    """Keeps the last minute of one stream."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=KEPT_SAMPLES + 1)
        self._ready_percents: deque[int] = deque(maxlen=KEPT_SAMPLES)
        self._waited_s: dict[int, float] = {}
        self._observed_s = 0.0
        self._consumer_s = self._stalled_s = self._full_s = self._empty_s = self._longest_task_s = 0.0
        self._cpu_s = self._cpu_wait_s = 0.0
        self._last = Counts()

    def observe(self, counts: Counts, now_s: float) -> None:
        """Takes the stream's counts at `now_s`. Since the last call everything is taken to have been as it is now."""
        since_s = now_s - self._observed_s if self._samples else 0.0
        self._observed_s = now_s
        for number, waited_s in counts.consumers:
            # What it waited for its first batch is the stream's start, and no rate.
            before_s = self._waited_s.get(number)
            if before_s is not None:
                self._consumer_s += since_s
                self._stalled_s += min(since_s, max(0.0, waited_s - before_s))
        if counts.consumers and not self._waited_s:
            # What the stream did before anybody consumed it says nothing of how it keeps up.
            self._samples.clear()
        self._waited_s = dict(counts.consumers)
        if counts.is_full:
            self._full_s += since_s
        if not counts.ready_share:
            self._empty_s += since_s
        # The sums fall when workers end: their times are gone from them.
        self._cpu_s += max(0.0, counts.cpu_s - self._last.cpu_s)
        self._cpu_wait_s += max(0.0, counts.cpu_wait_s - self._last.cpu_wait_s)
        self._longest_task_s = max(self._longest_task_s, counts.longest_task_s)
        self._last = counts
        if not self._samples or now_s - self._samples[-1].at_s >= SAMPLE_EVERY_S:
            self._samples.append(self._sample())
            self._ready_percents.append(round(100 * counts.ready_share))
            self._longest_task_s = 0.0

    def recent(self) -> dict[str, Any]:
        """Returns the last minute, or what there is of it since somebody has begun to consume. Empty until a second has
        passed."""
        if len(self._samples) < 2:
            return {}
        begin, end = self._samples[0], self._sample()
        over_s = end.at_s - begin.at_s
        return {
            "over_s": over_s,
            "produced_batches_per_s": (end.batches - begin.batches) / over_s,
            "produced_samples_per_s": (end.samples - begin.samples) / over_s,
            "consumed_batches_per_s": (end.consumed - begin.consumed) / over_s,
            "consumer_s": end.consumer_s - begin.consumer_s,
            "stalled_s": end.stalled_s - begin.stalled_s,
            "fill_s": end.fill_s - begin.fill_s,
            "cpu_s": end.cpu_s - begin.cpu_s,
            "cpu_wait_s": end.cpu_wait_s - begin.cpu_wait_s,
            "full_share": (end.full_s - begin.full_s) / over_s,
            "empty_share": (end.empty_s - begin.empty_s) / over_s,
            # Without the first sample: its longest task ended before the span began.
            "longest_task_s": max(each.longest_task_s for each in [*self._samples, end][1:]),
        }

    def ready_percents(self) -> list[int]:
        """Returns how much of the ring was ready, second by second, the latest last."""
        return list(self._ready_percents)

    def _sample(self) -> _Sample:
        counts = self._last
        return _Sample(
            self._observed_s,
            counts.batches,
            counts.samples,
            counts.consumed,
            counts.fill_s,
            self._cpu_s,
            self._cpu_wait_s,
            self._consumer_s,
            self._stalled_s,
            self._full_s,
            self._empty_s,
            self._longest_task_s,
        )
