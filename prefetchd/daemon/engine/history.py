"""Turns a stream's last minute into rates: what was made, consumed and waited for, second by second. Pure.

observe() is given the stream's running counts several times a second; one sample a second is kept.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from prefetchd.tuning.worker_tuner import Sums
from prefetchd.wire.records import record

SAMPLE_EVERY_S = 1.0
KEPT_SAMPLES = 60
LATEST_SAMPLES = 5
"""How many samples back `busy_workers` looks: what a stream does by now, and not what it did a minute ago."""


@record
class Counts:
    """A stream's running counts at one instant; those of time in seconds, over all workers or consumers.

    `cpu_s` and `cpu_wait_s` are of workers' main threads, `process_cpu_s` of all their threads; of the time in tasks
    `collating_s` is spent in collate_fn and `disk_s` waiting for a disk. `ready_share` is the part of the ring's slots
    whose batches are ready; `is_full`: there is nothing to fill that there is room for; `is_starting`: there is, and no
    worker that has begun. `workers` may be busy, `busy` are. `consumers` has for each that has got a batch (its number,
    what next() has waited in it by now). `longest_task_s` is the longest task since the last observation. CPUs are
    looked at now and then: up to `cpu_over_s`. Of `batches` other machines have made `elsewhere`, which cost nothing of
    the above.
    """

    batches: int = 0
    samples: int = 0
    consumed: int = 0
    fill_s: float = 0.0
    cpu_s: float = 0.0
    cpu_wait_s: float = 0.0
    process_cpu_s: float = 0.0
    collating_s: float = 0.0
    disk_s: float = 0.0
    ready_share: float = 0.0
    is_full: bool = False
    is_starting: bool = False
    workers: int = 0
    busy: int = 0
    consumers: tuple[tuple[int, float], ...] = ()
    longest_task_s: float = 0.0
    cpu_over_s: float = 0.0
    elsewhere: int = 0


@record
class _Sample:
    at_s: float
    batches: int
    samples: int
    consumed: int
    fill_s: float
    cpu_s: float
    cpu_wait_s: float
    process_cpu_s: float
    collating_s: float
    disk_s: float
    consumer_s: float
    stalled_s: float
    full_s: float
    empty_s: float
    starting_s: float
    bursts: int
    longest_task_s: float
    elsewhere: int


@record
class _Pace:
    """What so many workers have made while all of them were busy."""

    batches: int = 0
    over_s: float = 0.0


class History:
    """Keeps the last minute of one stream."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque(maxlen=KEPT_SAMPLES + 1)
        self._ready_percents: deque[int] = deque(maxlen=KEPT_SAMPLES)
        self._waited_s: dict[int, float] = {}
        self._observed_s = 0.0
        self._consumer_s = self._stalled_s = self._full_s = self._empty_s = self._longest_task_s = 0.0
        self._cpu_s = self._cpu_wait_s = self._process_cpu_s = self._starting_s = 0.0
        self._paces: dict[int, _Pace] = {}
        self._bursts, self._was_full = 0, False
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
            self._bursts += self._was_full
        self._was_full = counts.is_full or (self._was_full and counts.ready_share > 0)
        if counts.is_starting:
            self._starting_s += since_s
        # A sum that falls takes nothing off what there was.
        self._cpu_s += max(0.0, counts.cpu_s - self._last.cpu_s)
        self._cpu_wait_s += max(0.0, counts.cpu_wait_s - self._last.cpu_wait_s)
        self._process_cpu_s += max(0.0, counts.process_cpu_s - self._last.process_cpu_s)
        self._note_pace(counts, since_s)
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
            "elsewhere_batches_per_s": (end.elsewhere - begin.elsewhere) / over_s,
            "consumed_batches_per_s": (end.consumed - begin.consumed) / over_s,
            "consumer_s": end.consumer_s - begin.consumer_s,
            "stalled_s": end.stalled_s - begin.stalled_s,
            "fill_s": end.fill_s - begin.fill_s,
            "cpu_s": end.cpu_s - begin.cpu_s,
            "cpu_wait_s": end.cpu_wait_s - begin.cpu_wait_s,
            "process_cpu_s": end.process_cpu_s - begin.process_cpu_s,
            "collating_s": end.collating_s - begin.collating_s,
            "disk_s": end.disk_s - begin.disk_s,
            "full_share": (end.full_s - begin.full_s) / over_s,
            "empty_share": (end.empty_s - begin.empty_s) / over_s,
            "starting_s": end.starting_s - begin.starting_s,
            "bursts": end.bursts - begin.bursts,
            "busy_workers": self._busy_workers(end),
            # Without the first sample: its longest task ended before the span began.
            "longest_task_s": max(each.longest_task_s for each in [*self._samples, end][1:]),
        }

    def sums(self) -> Sums:
        """Returns what the stream has done by now."""
        last = self._last
        return Sums(
            last.samples,
            last.batches,
            last.consumed,
            last.fill_s,
            max(self._cpu_s, self._process_cpu_s),
            self._cpu_wait_s,
            self._consumer_s,
            self._stalled_s,
            last.cpu_over_s,
            self._full_s,
            self._bursts,
        )

    @property
    def latest(self) -> Counts:
        """The counts that were observed last."""
        return self._last

    def paces(self) -> list[dict[str, Any]]:
        """Returns what was made with each number of workers that there was, while all of them were busy, the latest
        last."""
        return [
            {"workers": workers, "batches_per_s": pace.batches / pace.over_s, "over_s": pace.over_s}
            for workers, pace in self._paces.items()
            if pace.over_s
        ]

    def _note_pace(self, counts: Counts, since_s: float) -> None:
        if counts.workers != self._last.workers:
            # What that many made before, if they did, may have been of another time; and it becomes the latest.
            self._paces.pop(counts.workers, None)
        elif counts.workers and counts.busy >= counts.workers and since_s:
            former = self._paces.get(counts.workers, _Pace())
            last = self._last
            made = max(0, counts.batches - counts.elsewhere - last.batches + last.elsewhere)
            self._paces[counts.workers] = _Pace(former.batches + made, former.over_s + since_s)

    def _busy_workers(self, end: _Sample) -> float:
        begin = self._samples[-min(len(self._samples), LATEST_SAMPLES)]
        over_s = end.at_s - begin.at_s
        return (end.fill_s - begin.fill_s) / over_s if over_s else float(self._last.busy)

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
            self._process_cpu_s,
            counts.collating_s,
            counts.disk_s,
            self._consumer_s,
            self._stalled_s,
            self._full_s,
            self._empty_s,
            self._starting_s,
            self._bursts,
            self._longest_task_s,
            counts.elsewhere,
        )
