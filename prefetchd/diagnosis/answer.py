"""Answers what perfect loading would bring a trainer, from the waits that were measured. Pure.

A trainer that waited for the share s of its time works for the rest of it. With data always ready it would do the same
work in 1 - s of that time, so it would run 1 / (1 - s) times as fast.
"""

from __future__ import annotations

from prefetchd.diagnosis.health import duration
from prefetchd.diagnosis.rates import Rates
from prefetchd.tuning.worker_tuner import WAITS_ALWAYS_SHARE

UNNOTICED_SHARE = 0.0005
"""A smaller share of waiting is shown as none."""
MINUTE_S = 55.0
"""From so many seconds on the measured time is called "the last minute"."""


def perfect_speedup(stalled: float) -> float:
    """Return how many times as fast the trainer would run with data always ready.

    It is at most 20: a trainer that waits for more than WAITS_ALWAYS_SHARE of its time has shown no pace of its own.
    """
    return 1 / (1 - min(stalled, WAITS_ALWAYS_SHARE))


def answer_of_a_run(stalled: float, over_s: float) -> str:
    """Return the sentence about a run that is over, or that has a pause: so many seconds of it were measured."""
    share = f"{stalled:.0%}" if stalled >= 0.01 else f"{stalled:.1%}"
    times = perfect_speedup(stalled)
    return (
        f"in the last {duration(over_s)} that were measured the trainer waited {share}; with data always ready it "
        f"would have run {times:.2f}x as fast"
    )


def answer(rates: Rates, trainers: int) -> str:
    """Return a sentence for people about the waits of so many trainers, and about what perfect loading would bring."""
    span = "minute" if rates.over_s >= MINUTE_S else f"{rates.over_s:.0f} s"
    who = f"its {trainers} trainers" if trainers > 1 else "the trainer"
    if rates.stalled < UNNOTICED_SHARE and not rates.followed:
        return f"{who} did not wait in the last {span}; faster loading would not make training faster"
    share = f"{rates.stalled:.0%}" if rates.stalled >= 0.01 else f"{rates.stalled:.1%}"
    times = f"{perfect_speedup(rates.stalled):.2f}x"
    if rates.followed:
        return (
            f"the batch where its progress file stands was missing for {share} of the last {span}; with data always "
            f"ready it would run {times} as fast at most"
        )
    at_least = "at least " if rates.stalled > WAITS_ALWAYS_SHARE else ""
    return f"{who} waited {share} of the last {span}; with data always ready it would run {at_least}{times} as fast"
