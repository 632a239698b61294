"""Says what other numbers would bring a stream: workers, batches of buffer, a sample cache, a second machine. Pure.

It is arithmetic on the stream's last minute, with the bounds of prefetchd.tuning.throughput. Each answer is what is
most likely, and between what it lies:

 1. N workers that do not wait for each other make no more than throughput(N), and no less than if each stood in line
    for a CPU behind all others: N / (task_s + (N - 1) * cpu_s / C). These are the asymptotic bounds (Lazowska,
    Zahorjan, Graham, Sevcik: "Quantitative System Performance", 1984, chapter 5), the lower one for C CPUs.
 2. What the present number makes is measured. Bounds that say otherwise are moved by as much.
 3. Tasks that wait may wait for each other. Nobody knows before it was tried: of more workers the lower end is what the
    present number makes. Where others were tried and did not help, more make what these make.
 4. A second machine has as many CPUs again, and as many workers. It may wait for what both share: rule 3.
 5. With a sample cache nothing is left of the tasks but copies, which take next to nothing beside what is worth a
    cache: at the most the trainer never waits. What its file takes to read is not known.
 6. Nobody gets more than the trainer takes. One that waits always has shown no pace: then what is made is the answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from prefetchd.diagnosis.rates import Rates, made_here, rates_of
from prefetchd.diagnosis.verdict import judge
from prefetchd.tuning.throughput import BatchCost, throughput, useful_workers
from prefetchd.tuning.worker_tuner import WAITS_ALWAYS_SHARE

WORKERS = (1, 2, 4, 8, 16, 32, 64)
MEASURED_SPREAD = 0.05
"""How far what is measured may be off by itself."""


@dataclasses.dataclass(frozen=True)
class Answer:
    """What the trainer would get, in batches a second, with `value` of `what` ("workers", "buffer", "sample cache",
    "machines"): most likely, and between which. `is_now`: it is what there is."""

    what: str
    value: int
    batches_per_s: float
    low: float
    high: float
    is_now: bool = False


@dataclasses.dataclass(frozen=True)
class Advice:
    """All answers about one stream. `why_none` is not empty where there is nothing to say yet; `demand` is what the
    trainer would take if it never waited, None where it has shown no pace."""

    why_none: str
    limit: str = ""
    stalled: float = 0.0
    demand: float | None = None
    answers: tuple[Answer, ...] = ()


def advise(stream: Mapping[str, Any], snapshot: Mapping[str, Any], workers: int | None = None) -> Advice:
    """Answers about a stream of the snapshot; also about so many `workers`, if that is given."""
    verdict = judge(stream, snapshot)
    if verdict.stalled_share is None:
        return Advice(verdict.text)
    recent = stream["recent"]
    if made_here(recent) <= 0 or recent["fill_s"] <= 0:
        return Advice("nothing was made here in the last minute")
    rates = rates_of(stream, snapshot, 0.0)
    # Rule 6.
    demand = rates.demand if rates.stalled <= WAITS_ALWAYS_SHARE else None
    # Rule 3.
    model = _Model(rates, recent, demand, scales=verdict.limit != "does not scale")
    numbers = {*WORKERS, rates.workers, *([] if workers is None else [workers])}
    useful = useful_workers(model.cost, model.cpus)
    answers = [
        model.with_workers(number)
        for number in sorted(numbers)
        if number == workers or number <= max(rates.workers, 2 * useful)
    ]
    if verdict.buffer_batches_wanted is not None and verdict.expected_batches_per_s is not None:
        answers += [model.with_buffer(verdict.buffer_batches_wanted, verdict.expected_batches_per_s)]
    answers += [model.with_machines(2), model.with_cache()]
    return Advice("", verdict.limit, rates.stalled, demand, tuple(answers))


class _Model:
    """The rules, for one stream."""

    def __init__(self, rates: Rates, recent: Mapping[str, Any], demand: float | None, *, scales: bool) -> None:
        batches = made_here(recent)
        cpu_s = max(recent["cpu_s"], recent["process_cpu_s"]) / batches
        task_s = max((recent["fill_s"] - recent["cpu_wait_s"]) / batches, cpu_s)
        self.cost = BatchCost(task_s, cpu_s)
        trainers = rates.load["trainers"] if rates.load is not None else 0.0
        self.cpus = max(1.0, rates.cpus - trainers)
        self._workers, self._demand, self._scales = rates.workers, demand, scales
        self._elsewhere = rates.elsewhere
        # What they make when none idles.
        self._supply = rates.supply
        self._now = min(self._supply, recent["consumed_batches_per_s"])
        # Rule 2.
        low, high = self._bounds(rates.workers, self.cpus)
        self._down, self._up = min(1.0, self._supply / low), max(1.0, self._supply / high)

    def with_workers(self, workers: int) -> Answer:
        low, high = self._made(workers, self.cpus)
        return self._answer("workers", workers, low, high, is_now=workers == self._workers)

    def with_machines(self, machines: int) -> Answer:
        low, high = self._made(machines * self._workers, machines * self.cpus)
        return self._answer("machines", machines, low, high)

    def with_cache(self) -> Answer:
        return self._answer("sample cache", 1, self._now, self._supply if self._demand is None else self._demand)

    def with_buffer(self, batches: int, expected: float) -> Answer:
        return Answer("buffer", batches, expected, min(self._now, expected), expected)

    def _bounds(self, workers: int, cpus: float) -> tuple[float, float]:
        """Rule 1, and what comes from other machines."""
        cost = self.cost
        low = workers / (cost.task_s + (workers - 1) * cost.cpu_s / cpus)
        return low + self._elsewhere, throughput(workers, cost, cpus) + self._elsewhere

    def _made(self, workers: int, cpus: float) -> tuple[float, float]:
        """Returns between what that many workers make (rules 1 to 4)."""
        if workers == self._workers and cpus == self.cpus:
            return self._supply * (1 - MEASURED_SPREAD), self._supply * (1 + MEASURED_SPREAD)
        low, high = self._bounds(workers, cpus)
        low, high = low * self._down, high * self._up
        if workers > self._workers:
            low = min(low, self._supply)
            if not self._scales:
                high = min(high, self._supply * (1 + MEASURED_SPREAD))
        return low, max(low, high)

    def _answer(self, what: str, value: int, low: float, high: float, *, is_now: bool = False) -> Answer:
        """Rule 6. What is most likely is what workers make that do not wait for each other: near the upper end."""
        likely = self._supply if is_now else high
        if self._demand is not None:
            low, likely, high = (min(each, self._demand) for each in (low, likely, high))
        return Answer(what, value, likely, low, high, is_now)
