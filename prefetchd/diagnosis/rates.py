"""Derives from a stream's last minute the numbers that the verdict is about, once. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from prefetchd.tuning.throughput import MOST_BUSY

PACE_OVER_S = 3.0
"""The time that so many workers must have been busy before what they made is compared."""


@dataclasses.dataclass(frozen=True)
class Rates:
    """The last minute in numbers. Shares are of the trainer's time (`stalled`), of the workers' (`busy`), of their time
    in tasks (`starved` in line for a CPU, `computing`, `collating`, `on_disk`) or of all time (`full`, `empty`).

    `demand`, `supply` and what comes from `elsewhere`, other machines, are batches a second, `cost_s` is worker-seconds
    a batch that is made here; `others_busy` is workers that other streams keep from this one; `bound` is the daemon's
    own bound of workers where that is in the way, else 0. `bursts` counts how often a full ring became empty. `paces`
    has what the workers that there are make and what another number of them made, each as (workers, batches a second);
    None where that is not known. `load` is the snapshot's, None where nobody counts. `followed`: a progress file tells
    where the trainer is. `one_by_one`: the dataset is asked for each sample by itself, which takes a worker `sample_s`;
    0 where that is not known.
    """

    over_s: float
    stalled: float
    stalled_s: float
    starting_s: float
    demand: float
    elsewhere: float
    cost_s: float
    workers: int
    busy: float
    others_busy: float
    starved: float
    computing: float
    collating: float
    on_disk: float
    full: float
    empty: float
    bursts: int
    longest_task_s: float
    ring_batches: float
    cpus: int
    bound: int
    paces: tuple[tuple[int, float], tuple[int, float]] | None
    load: Mapping[str, float] | None
    followed: bool
    one_by_one: bool
    sample_s: float

    @property
    def supply(self) -> float:
        return self.made_by(self.workers)

    def made_by(self, workers: int) -> float:
        """Returns how many batches a second come with so many workers, if each makes what it makes now."""
        return workers / self.cost_s + self.elsewhere if self.cost_s else math.inf

    @property
    def wanted(self) -> int:
        here = max(0.0, self.demand - self.elsewhere)
        return max(1, math.ceil(here * self.cost_s / MOST_BUSY - 1e-9))


def rates_of(stream: Mapping[str, Any], snapshot: Mapping[str, Any], others_busy: float) -> Rates:
    """Returns the numbers of a stream of the snapshot whose consumer has had its first batch: `recent` is there."""
    recent, ring, workers = stream["recent"], stream["ring"], snapshot["workers"]
    over_s = recent["over_s"]
    produced = made_here(recent)
    fill_s = max(0.0, recent["fill_s"])
    limit = max(1, stream["workers_limit"])
    # Nothing was made in the last minute: what its batches have cost so far is the best guess.
    before = stream["produced_batches"] - _from_nodes(stream)
    if not produced and before > 0:
        cost_s = stream["fill_s"] / before
    else:
        cost_s = fill_s / max(1.0, produced)
    stalled_s = min(recent["stalled_s"], recent["consumer_s"])
    # Never 0: a trainer that only waits would have an endless demand.
    computed_s = max(recent["consumer_s"] - stalled_s, 0.01 * recent["consumer_s"])
    # Workers run and stand in line between their tasks, too: of one that is next to idle that is most of it.
    in_tasks_s = max(fill_s, recent["cpu_s"] + recent["cpu_wait_s"])
    return Rates(
        over_s=over_s,
        stalled=stalled_s / recent["consumer_s"],
        stalled_s=stalled_s,
        starting_s=recent["starting_s"],
        elsewhere=_elsewhere(recent),
        demand=recent["consumed_batches_per_s"] * over_s / computed_s,
        cost_s=cost_s,
        workers=limit,
        busy=fill_s / over_s / limit,
        # Without a bound for all of them, no stream takes another one's workers.
        others_busy=others_busy if workers["limit"] else 0.0,
        starved=_share(recent["cpu_wait_s"], in_tasks_s),
        computing=_share(max(recent["cpu_s"], recent["process_cpu_s"]), in_tasks_s),
        collating=_share(recent["collating_s"], fill_s),
        on_disk=_share(recent["disk_s"], fill_s),
        full=recent["full_share"],
        empty=recent["empty_share"],
        bursts=recent["bursts"],
        longest_task_s=recent["longest_task_s"],
        ring_batches=ring["slots"] / max(1.0, ring["slots_a_batch"]) if ring else 0.0,
        cpus=workers["cpus"],
        bound=workers["limit"] if workers["limit"] == limit and stream["workers_asked"] != limit else 0,
        paces=_paces(stream["paces"], limit),
        load=snapshot["load"],
        followed=bool(stream["progress"]["file"]),
        one_by_one=stream["one_by_one"],
        sample_s=fill_s / max(1.0, recent["produced_samples_per_s"] * over_s * _share_made_here(recent)),
    )


def made_here(recent: Mapping[str, Any]) -> float:
    """Returns how many of the last minute's batches this machine's workers have made."""
    return float(max(0.0, recent["produced_batches_per_s"] - _elsewhere(recent)) * recent["over_s"])


def _elsewhere(recent: Mapping[str, Any]) -> float:
    # An older daemon's snapshot has no such key.
    return float(recent.get("elsewhere_batches_per_s", 0.0))


def _share_made_here(recent: Mapping[str, Any]) -> float:
    made = recent["produced_batches_per_s"] * recent["over_s"]
    return made_here(recent) / made if made else 1.0


def _from_nodes(stream: Mapping[str, Any]) -> int:
    remote = stream.get("remote") or {}
    return sum(node["batches"] for node in remote.get("nodes", ()))


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole else 0.0


def _paces(found: list[Mapping[str, Any]], workers: int) -> tuple[tuple[int, float], tuple[int, float]] | None:
    """Returns what so many `workers` make, and what the last other number of them made; None where one is not known."""
    measured = [
        (each["workers"], each["batches_per_s"])
        for each in found
        if each["over_s"] >= PACE_OVER_S and each["batches_per_s"] > 0
    ]
    now = [each for each in measured if each[0] == workers]
    before = [each for each in measured if each[0] != workers]
    return (now[-1], before[-1]) if now and before else None
