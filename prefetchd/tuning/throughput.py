"""Says how many batches a second so many workers make, and how many workers are worth having. Pure.

A batch takes `task_s` worker-seconds, without those in line for a CPU, of which `cpu_s` are spent on one. By N workers
and C CPUs no more can be made than

    X(N) = min(N / task_s, C / cpu_s)

the asymptotic bounds of operational analysis (Lazowska, Zahorjan, Graham, Sevcik: "Quantitative System Performance",
1984, chapter 5). They meet at N* = C * task_s / cpu_s. Tasks that wait do not come to the CPUs evenly, so that some
more are worth having there: as many again as wait at a time.
"""

from __future__ import annotations

import math

from prefetchd.wire.records import record

MOST_BUSY = 0.9
"""The most that workers may be busy and still keep up."""
UNEVENNESS = 1.0
"""How many more workers than N* are worth having, as a share of those that wait."""


@record
class BatchCost:
    """What a batch costs, in seconds: of workers (`task_s`), and of CPUs (`cpu_s`)."""

    task_s: float
    cpu_s: float

    @property
    def waiting_share(self) -> float:
        """The share of their time in tasks in which workers need no CPU."""
        return 1.0 - min(1.0, self.cpu_s / self.task_s) if self.task_s else 0.0


def throughput(workers: float, cost: BatchCost, cpus: float) -> float:
    """Returns the batches a second that so many workers can make; inf where they cost nothing."""
    by_workers = workers / cost.task_s if cost.task_s else math.inf
    by_cpus = cpus / cost.cpu_s if cost.cpu_s else math.inf
    return min(by_workers, by_cpus)


def useful_workers(cost: BatchCost, cpus: float) -> float:
    """Returns how many workers are worth having when whatever they make is taken; inf where they need no CPU."""
    if not cost.cpu_s:
        return math.inf if cost.task_s else 1.0
    busy_enough = cpus * max(1.0, cost.task_s / cost.cpu_s)
    return busy_enough * (1.0 + UNEVENNESS * cost.waiting_share)


def workers_for(demand_per_s: float, cost: BatchCost) -> float:
    """Returns how many workers make `demand_per_s` batches a second, if there are CPUs enough."""
    return demand_per_s * cost.task_s / MOST_BUSY
