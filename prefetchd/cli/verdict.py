"""Says what limits a stream, in words and as arithmetic on its last minute. Pure; docs/status.md explains it.

demand   batches a second that the trainer would take if it never waited: consumed / (its time - stalls)
cost     worker-seconds that a batch takes: time of workers in tasks / batches made
supply   batches a second that the allowed workers would make if none of them ever idled: workers / cost
wanted   workers that would keep up: demand x cost / MOST_BUSY, rounded up
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

MEASURE_S = 3.0
"""The trainer's time below which nothing is judged."""
STALLED_SHARE = 0.02
"""The share of its time below which the trainer does not wait in earnest."""
BUSY_SHARE = 0.75
"""The share from which on the allowed workers have no time left."""
WAITS_ALWAYS_SHARE = 0.95
"""The share of waiting from which on a trainer has shown no pace of its own."""
MOST_BUSY = 0.9
"""The most that workers may be busy and still keep up."""
SELDOM_FULL_SHARE = 0.02
"""The share of time with a full ring below which idle workers wait for tasks, not for room."""
STARVED_SHARE = 0.25
"""The share of waiting for a CPU from which on it is the lack of CPUs that makes tasks long."""
COMPUTING_SHARE = 0.7
"""The share of CPU time from which on tasks are no faster with more workers than CPUs."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A verdict. `limit`: "none" (nothing to judge), "trainer", "dataset", "cpu", "other streams", "daemon", "slow
    samples" or "buffer". `text` says it to people. Rates in batches a second; None where they are not known."""

    limit: str
    text: str
    stalled_share: float | None = None
    demand_batches_per_s: float | None = None
    supply_batches_per_s: float | None = None
    workers_wanted: int | None = None
    buffer_batches_wanted: int | None = None


@dataclasses.dataclass(frozen=True)
class _Rates:
    """The numbers that are derived from the last minute, once."""

    stalled: float
    demand: float
    cost_s: float
    workers: int
    busy: float
    others_busy: float
    starved: float
    computing: float
    full: float
    empty: float
    longest_task_s: float
    ring_batches: float
    cpus: int
    bound: int

    @property
    def supply(self) -> float:
        return self.workers / self.cost_s if self.cost_s else math.inf

    @property
    def wanted(self) -> int:
        return max(1, math.ceil(self.demand * self.cost_s / MOST_BUSY - 1e-9))


def judge(stream: Mapping[str, Any], workers: Mapping[str, Any], others_fill_s: float = 0.0) -> Verdict:
    """Judges one stream of a snapshot. `workers` is the snapshot's own; `others_fill_s` is what workers spent on other
    streams in the last minute, per second of it."""
    silent = _nothing_to_judge(stream)
    if silent is not None:
        return Verdict("none", silent)
    rates = _rates(stream, workers, others_fill_s)
    limit, text, wanted, buffer = _limit(rates)
    return Verdict(
        limit,
        text,
        rates.stalled,
        rates.demand,
        rates.supply if math.isfinite(rates.supply) else None,
        wanted,
        buffer,
    )


def _nothing_to_judge(stream: Mapping[str, Any]) -> str | None:
    recent = stream["recent"]
    living = [each for each in stream["consumers"] if not each["departed"]]
    if stream["failure"] is not None:
        return "it has failed"
    if stream["paused"]:
        return "paused: nothing is filled until `prefetchd resume`"
    if not living:
        return "nobody consumes it"
    waiting_s = max((each.get("waiting_s", 0.0) for each in living), default=0.0)
    if not recent or recent["consumer_s"] < MEASURE_S:
        if waiting_s >= 1.0:
            return f"the trainer has waited {waiting_s:.0f} s for a batch"
        ring = stream["ring"]
        if not stream["consumed_batches"] and ring is not None and ring["ready"] and not ring["filling"]:
            return "its ring is full, and nobody has taken a batch yet"
        return "measuring"
    # No batch in the last minute: rates would be of nothing.
    if recent["consumed_batches_per_s"] * recent["over_s"] < 1:
        if not recent["stalled_s"]:
            return "the trainer does not ask for batches"
        if waiting_s >= 1.0:
            return f"the trainer has waited {waiting_s:.0f} s for a batch"
        return "measuring"
    return None


def _rates(stream: Mapping[str, Any], workers: Mapping[str, Any], others_fill_s: float) -> _Rates:
    recent, ring = stream["recent"], stream["ring"]
    over_s = recent["over_s"]
    produced = recent["produced_batches_per_s"] * over_s
    fill_s = max(0.0, recent["fill_s"])
    limit = max(1, stream["workers_limit"])
    # Nothing was made in the last minute: what its batches have cost so far is the best guess.
    if not produced and stream["produced_batches"]:
        cost_s = stream["fill_s"] / stream["produced_batches"]
    else:
        cost_s = fill_s / max(1.0, produced)
    stalled_s = min(recent["stalled_s"], recent["consumer_s"])
    # Never 0: a trainer that only waits would have an endless demand.
    computed_s = max(recent["consumer_s"] - stalled_s, 0.01 * recent["consumer_s"])
    return _Rates(
        stalled=stalled_s / recent["consumer_s"],
        demand=recent["consumed_batches_per_s"] * over_s / computed_s,
        cost_s=cost_s,
        workers=limit,
        busy=fill_s / over_s / limit,
        others_busy=others_fill_s,
        starved=min(1.0, recent["cpu_wait_s"] / fill_s) if fill_s else 0.0,
        computing=min(1.0, recent["cpu_s"] / fill_s) if fill_s else 0.0,
        full=recent["full_share"],
        empty=recent["empty_share"],
        longest_task_s=recent["longest_task_s"],
        ring_batches=ring["slots"] / max(1.0, ring["slots_a_batch"]) if ring else 0.0,
        cpus=workers["cpus"],
        bound=workers["limit"] if workers["limit"] == limit and stream["workers_asked"] != limit else 0,
    )


def _limit(rates: _Rates) -> tuple[str, str, int | None, int | None]:
    """Returns (limit, text, workers wanted, buffer wanted)."""
    if rates.stalled < STALLED_SHARE:
        if rates.full >= 0.5:
            return "trainer", f"the trainer is the limit; the ring is full {rates.full:.0%} of the time", None, None
        return "trainer", f"the trainer is the limit; {_count(rates.workers)} {rates.busy:.0%} busy", None, None
    head = f"loader-bound: {rates.stalled:.0%} of the trainer's time; "
    if rates.busy + rates.others_busy / rates.workers >= BUSY_SHARE:
        return _no_worker_idle(rates, head)
    if rates.full < SELDOM_FULL_SHARE:
        text = (
            f"the limit is the daemon: {_count(rates.workers)} {rates.busy:.0%} busy though there is room in the ring; "
            "it does not get the CPU in time, or batches are too small. Larger batches, or CPUs, would help"
        )
        return "daemon", head + text, None, None
    bridging = math.ceil(rates.demand * rates.longest_task_s) + rates.workers + 1
    if rates.longest_task_s > 3 * rates.cost_s and bridging > rates.ring_batches / 2:
        text = (
            f"single tasks take up to {_duration(rates.longest_task_s)} (a batch: {_duration(rates.cost_s)}), and the "
            f"ring of {rates.ring_batches:.0f} batches lasts {_duration(rates.ring_batches / rates.demand)}; "
            f"buffer={2 * bridging} would bridge that"
        )
        return "slow samples", head + text, None, 2 * bridging
    wanted = max(2 * math.ceil(rates.ring_batches), 8)
    text = (
        f"the workers could make {_rate(rates.supply)} batches/s and the trainer takes {_rate(rates.demand)}, but the "
        f"ring of {rates.ring_batches:.0f} batches is full {rates.full:.0%} and empty {rates.empty:.0%} of the time; "
        f"a larger buffer= would even that out: {wanted} or more"
    )
    return "buffer", head + text, None, wanted


def _no_worker_idle(rates: _Rates, head: str) -> tuple[str, str, int | None, int | None]:
    if rates.starved >= STARVED_SHARE:
        text = (
            f"the limit is the CPU: {_count(rates.workers)} in line for one {rates.starved:.0%} of their time; "
            f"{rates.cpus} can be used. Fewer threads in the trainer, or more CPUs, would help; more workers would not"
        )
        return "cpu", head + text, None, None
    if rates.busy < BUSY_SHARE:
        text = (
            f"other streams keep {rates.others_busy:.1f} of the workers busy, and this one gets "
            f"{rates.busy * rates.workers:.1f} of {rates.workers}; "
            f"{math.ceil(rates.wanted + rates.others_busy)} for all of them would keep up"
        )
        return "other streams", head + text, math.ceil(rates.wanted + rates.others_busy), None
    which = "worker" if rates.workers == 1 else "workers"
    head += f"the limit is the dataset in {rates.workers} {which}; "
    # Its demand would be a guess, and so would the number of workers.
    if rates.stalled > WAITS_ALWAYS_SHARE:
        if rates.computing >= COMPUTING_SHARE and rates.workers >= rates.cpus:
            return "cpu", f"{head}they compute, and {rates.cpus} CPUs can be used", None, None
        return "dataset", f"{head}the trainer would take whatever more of them make", None, None
    wanted = max(rates.wanted, rates.workers + 1)
    if rates.bound:
        text = f"{wanted} workers would keep up, but `[daemon] workers` or --workers allow {rates.bound}"
        return "dataset", head + text, wanted, None
    if rates.computing >= COMPUTING_SHARE and wanted > rates.cpus:
        keeps_up = f"{wanted} workers would keep up, but they compute, and {rates.cpus} CPUs can be used"
        limit = "cpu" if rates.workers >= rates.cpus else "dataset"
    else:
        keeps_up, limit = f"{wanted} workers would keep up", "dataset"
    return limit, head + keeps_up, wanted, None


def _count(workers: int) -> str:
    return "its worker is" if workers == 1 else f"its {workers} workers are"


def _rate(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 10 else f"{per_s:.2g}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
