"""Says what limits a stream, in words and as arithmetic on its last minute. Pure; docs/status.md explains it, and
decisions 0030 (arithmetic) and 0110 (what is measured) have the reasons.

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

from prefetchd.diagnosis.answer import answer, perfect_speedup
from prefetchd.diagnosis.elsewhere import elsewhere
from prefetchd.diagnosis.rates import Rates, rates_of
from prefetchd.tuning.ring_tuner import LONG_TASK, SELDOM_FULL_SHARE, bridging_batches, missing_batches
from prefetchd.tuning.worker_tuner import BUSY_SHARE, STALLED_SHARE, WAITS_ALWAYS_SHARE

LIMITS = (
    "none",
    "trainer",
    "starting",
    "foreign load",
    "cpu",
    "does not scale",
    "collate",
    "waiting",
    "dataset",
    "other streams",
    "daemon",
    "slow samples",
    "buffer",
)
"""All limits that there are."""

MEASURE_S = 3.0
"""The trainer's time below which nothing is judged."""
STARVED_SHARE = 0.25
"""The share of waiting for a CPU from which on it is the lack of CPUs that makes tasks long."""
COMPUTING_SHARE = 0.7
"""The share of CPU time from which on tasks are no faster with more workers than CPUs."""
WAITING_SHARE = 0.5
"""The share of CPU time below which tasks mostly wait, for a disk, a network or each other."""
MOST_OF_IT = 0.5
"""The share of their time from which on what workers do is what their tasks are about."""
OTHERS_SHARE = 0.25
"""The share of all CPUs from which on foreign processes are a load."""
SHORT_SAMPLE_S = 50e-6
"""The time of a sample below which most of it may be the calls that it takes."""
SCALING_STEP = 1.5
"""How many times as many workers there must have been for a comparison of what they make."""
SCALING_SHARE = 0.2
"""The share of the gain that more workers could have brought below which they have brought nothing."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A verdict. `limit` is one of LIMITS; "none": there is nothing to judge. `text` says it to people. Rates are in
    batches a second; None where they are not known. `expected_batches_per_s` is what the trainer would get with the
    remedy that the text names; None where it names none, or where nobody can tell. `perfect_speedup` is how many times
    as fast the trainer would run if it never waited, and `answer` says that to people; None and empty with limit
    "none"."""

    limit: str
    text: str
    stalled_share: float | None = None
    demand_batches_per_s: float | None = None
    supply_batches_per_s: float | None = None
    workers_wanted: int | None = None
    buffer_batches_wanted: int | None = None
    expected_batches_per_s: float | None = None
    perfect_speedup: float | None = None
    answer: str = ""


@dataclasses.dataclass(frozen=True)
class _Finding:
    """What is found once there is something to judge: as in Verdict."""

    limit: str
    text: str
    workers: int | None = None
    buffer: int | None = None
    expected: float | None = None


def judge(stream: Mapping[str, Any], snapshot: Mapping[str, Any], others_busy: float = 0.0) -> Verdict:
    """Judges one stream of the snapshot. `others_busy` is how many workers other streams keep busy by now."""
    silent = _nothing_to_judge(stream)
    if silent is not None:
        return Verdict("none", silent)
    rates = rates_of(stream, snapshot, others_busy)
    found = _find(rates)
    return Verdict(
        found.limit,
        found.text + _at_once(rates, found.limit) + _by_itself(stream, found) + _elsewhere(stream, rates, found.limit),
        rates.stalled,
        rates.demand,
        rates.supply if math.isfinite(rates.supply) else None,
        found.workers,
        found.buffer,
        found.expected,
        perfect_speedup(rates.stalled),
        answer(rates, sum(not each["departed"] for each in stream["consumers"])),
    )


def _nothing_to_judge(stream: Mapping[str, Any]) -> str | None:
    recent = stream["recent"]
    living = [each for each in stream["consumers"] if not each["departed"]]
    followed = bool(stream["progress"]["file"])
    if stream["failure"] is not None:
        return "it has failed"
    if stream["paused"]:
        return "paused: nothing is filled until `prefetchd resume`"
    if stream["store_fault"]:
        return "its batches cannot be stored"
    # Of an older daemon it is missing.
    absent = stream.get("absent_consumers", [])
    if not living and absent:
        pids = ", ".join(map(str, absent))
        return f"pid {pids} has not connected to this daemon yet: it takes batches that an earlier daemon offered it"
    if not living and not followed:
        return "nobody consumes it"
    if not living and not stream["consumed_batches"]:
        return "its progress file has not told yet that anybody goes on"
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


def _find(rates: Rates) -> _Finding:
    """The first rule that holds is the verdict; docs/status.md has them in the same order."""
    if rates.stalled < STALLED_SHARE:
        found = f"the ring is full {rates.full:.0%} of the time" if rates.full >= 0.5 else _busy(rates)
        return _Finding("trainer", f"the trainer is the limit; {found}{_unseen(rates)}")
    if rates.followed:
        head = (
            f"late: {rates.stalled:.0%} of the time the batch where its progress file stands was not ready; its waits "
            "themselves cannot be seen; "
        )
    else:
        head = f"loader-bound: {rates.stalled:.0%} of the trainer's time; "
    # Before all that has a remedy: this passes by itself.
    if rates.starting_s >= MOST_OF_IT * rates.stalled_s:
        text = (
            f"its workers were starting for {rates.starting_s:.1f} of the last {rates.over_s:.0f} s (they import what "
            "the dataset needs), which passes"
        )
        return _Finding("starting", head + text)
    if rates.busy + rates.others_busy / rates.workers >= BUSY_SHARE:
        return _no_worker_idle(rates, head)
    # Workers idle from here on. While there is room, nothing but the daemon keeps tasks from them.
    if rates.full < SELDOM_FULL_SHARE:
        text = (
            f"the limit is the daemon: {_busy(rates)} though there is room in the ring; "
            "it does not get the CPU in time, or batches are too small. Larger batches, or CPUs, would help"
        )
        return _Finding("daemon", head + text)
    bridging = bridging_batches(rates.demand, rates.longest_task_s, rates.workers)
    most = min(rates.demand, rates.supply)
    if rates.longest_task_s > LONG_TASK * rates.cost_s and bridging > rates.ring_batches / 2:
        text = (
            f"single tasks take up to {_duration(rates.longest_task_s)} (a batch: {_duration(rates.cost_s)}), and the "
            f"ring of {rates.ring_batches:.0f} batches lasts {_duration(rates.ring_batches / rates.demand)}; "
            f"buffer={2 * bridging} would bridge that"
        )
        return _Finding("slow samples", head + text, buffer=2 * bridging, expected=most)
    return _in_bursts(rates, head, most)


def _in_bursts(rates: Rates, head: str, most: float) -> _Finding:
    """Advises on a trainer that takes batches in bursts: what workers make while it waits should have been there."""
    head += (
        f"the workers could make {_rate(rates.supply)} batches/s and the trainer takes {_rate(rates.demand)}, but the "
        f"ring of {rates.ring_batches:.0f} batches is full {rates.full:.0%} and empty {rates.empty:.0%} of the time; "
    )
    if not rates.bursts:
        wanted = max(2 * math.ceil(rates.ring_batches), 8)
        return _Finding("buffer", f"{head}a larger buffer= would even that out: {wanted} or more", buffer=wanted)
    wanted = math.ceil(rates.ring_batches + missing_batches(rates.stalled_s, rates.bursts, rates.supply)) + 1
    return _Finding("buffer", f"{head}buffer={wanted} would bridge its bursts", buffer=wanted, expected=most)


def _no_worker_idle(rates: Rates, head: str) -> _Finding:
    if rates.busy < BUSY_SHARE:
        wanted = math.ceil(rates.wanted + rates.others_busy)
        text = (
            f"other streams keep {rates.others_busy:.1f} of the workers busy, and this one gets "
            f"{rates.busy * rates.workers:.1f} of {rates.workers}; {wanted} for all of them would keep up"
        )
        return _Finding("other streams", head + text, wanted, expected=rates.demand)
    found = _in_line(rates, head) or _does_not_scale(rates, head)
    if found is not None:
        return found
    limit, what = _of_the_tasks(rates)
    if limit == "waiting":
        return _waiting(rates, head + what)
    head += what
    # Its demand would be a guess, and so would the number of workers.
    if rates.stalled > WAITS_ALWAYS_SHARE:
        if rates.computing >= COMPUTING_SHARE and rates.workers >= rates.cpus:
            return _Finding("cpu", f"{head}they compute, and {rates.cpus} CPUs can be used")
        return _Finding(limit, f"{head}the trainer would take whatever more of them make")
    wanted = max(rates.wanted, rates.workers + 1)
    if rates.bound:
        return _Finding(limit, head + _bound(wanted, rates), wanted, expected=rates.demand)
    if rates.computing >= COMPUTING_SHARE and wanted > rates.cpus:
        limit = "cpu" if rates.workers >= rates.cpus and limit == "dataset" else limit
        most = min(rates.demand, rates.made_by(rates.cpus)) if rates.workers < rates.cpus else None
        text = f"{wanted} workers would keep up, but they compute, and {rates.cpus} CPUs can be used"
        return _Finding(limit, head + text, wanted, expected=most)
    return _Finding(limit, f"{head}{wanted} workers would keep up", wanted, expected=rates.demand)


def _does_not_scale(rates: Rates, head: str) -> _Finding | None:
    """Compares what so many workers make with what fewer, or more, made before."""
    # Tasks that compute do not wait for each other: what they lack is CPUs.
    if rates.paces is None or rates.computing >= COMPUTING_SHARE:
        return None
    (fewer, slow), (more, fast) = sorted([rates.paces[0], rates.paces[1]])
    gain, most = fast / slow - 1, more / fewer - 1
    if more < SCALING_STEP * fewer or gain >= SCALING_SHARE * most:
        return None
    text = (
        f"it does not scale: {fewer} workers made {_rate(slow)} batches/s and {more} make {_rate(fast)}; they wait for "
        "each other, or for a disk or network that gives no more. More workers would not help; less of what they "
        "share, or a sample cache, would"
    )
    return _Finding("does not scale", head + text)


def _in_line(rates: Rates, head: str) -> _Finding | None:
    """Tells who has the CPUs for which workers stand in line."""
    if rates.starved < STARVED_SHARE:
        return None
    in_line = f"{_workers(rates)} in line for a CPU {rates.starved:.0%} of their time; {rates.cpus} can be used, "
    if rates.load is not None:
        # Alone they would have what others have taken, and use no more than they compute.
        computing_s = rates.computing * rates.cost_s
        alone = min(rates.workers / (rates.cost_s * (1 - rates.starved)), rates.cpus / max(computing_s, 1e-9))
        alone += rates.elsewhere
        expected = min(rates.demand, alone) if rates.stalled <= WAITS_ALWAYS_SHARE else alone
        if rates.load["others"] >= max(OTHERS_SHARE * rates.load["cpus"], rates.load["trainers"]):
            text = (
                f"the limit is a foreign load: {in_line}and processes that are neither the trainer's nor prefetchd's "
                f"use {rates.load['others']:.1f}. Without them it would be about {_rate(expected)} batches/s; more "
                "workers would not help"
            )
            return _Finding("foreign load", head + text, expected=expected)
        if rates.load["trainers"] >= OTHERS_SHARE * rates.load["cpus"]:
            text = (
                f"the limit is the CPU: {in_line}and trainers use {rates.load['trainers']:.1f}. Fewer threads in the "
                "trainer (torch.set_num_threads), or more CPUs, would help; more workers would not"
            )
            return _Finding("cpu", head + text)
    text = f"the limit is the CPU: {in_line}and workers use them. More CPUs would help; more workers would not"
    return _Finding("cpu", head + text)


def _of_the_tasks(rates: Rates) -> tuple[str, str]:
    """Returns what tasks mostly are, and the text that says so."""
    who = f"in {rates.workers} {'worker' if rates.workers == 1 else 'workers'}"
    if rates.collating >= MOST_OF_IT:
        return "collate", f"the limit is collate_fn {who}, which takes {rates.collating:.0%} of their time; "
    if rates.computing < WAITING_SHARE:
        return "waiting", f"the limit is the dataset {who}, whose tasks wait {1 - rates.computing:.0%} of the time"
    return "dataset", f"the limit is the dataset {who}; "


def _waiting(rates: Rates, head: str) -> _Finding:
    """Advises on tasks that wait. How many of them can wait at once is known only once it was tried: never more than a
    step is advised of which nothing is known."""
    step = 2 * rates.workers
    if rates.on_disk >= MOST_OF_IT * (1 - rates.computing):
        wanted = min(max(rates.wanted, rates.workers + 1), step)
        text = f" for the disk; {wanted} workers may bring more, as far as the disk does; a sample cache would"
        return _Finding("waiting", head + text, wanted)
    if rates.stalled > WAITS_ALWAYS_SHARE:
        text = f"; the trainer would take whatever more of them make: {step} workers would make twice as much"
        return _Finding("waiting", head + text, step, expected=rates.made_by(step))
    wanted = max(rates.wanted, rates.workers + 1)
    if rates.bound:
        return _Finding("waiting", f"{head}; {_bound(wanted, rates)}", wanted, expected=rates.demand)
    text = f"; {wanted} workers would keep up, unless they wait for each other"
    return _Finding("waiting", head + text, wanted, expected=rates.demand)


def _at_once(rates: Rates, limit: str) -> str:
    """Names a way to cheaper samples, where they are so short that it may be worth more than workers are."""
    is_short = 0 < rates.sample_s < SHORT_SAMPLE_S and rates.computing >= COMPUTING_SHARE
    if limit not in ("dataset", "cpu") or not rates.one_by_one or not is_short:
        return ""
    return (
        f". Its samples take {rates.sample_s * 1e6:.0f} us each, by a call of __getitem__ for each of them: "
        "__getitems__, which makes those of a batch at once, may take a quarter of that"
    )


def _elsewhere(stream: Mapping[str, Any], rates: Rates, limit: str) -> str:
    is_of_cpus = limit in ("cpu", "dataset", "collate") and rates.computing >= COMPUTING_SHARE
    return elsewhere(stream, rates) if is_of_cpus else ""


def _by_itself(stream: Mapping[str, Any], found: _Finding) -> str:
    """Says who turns what the text names, where that need not be a person."""
    # Those of an older daemon are missing.
    if found.workers is not None and stream.get("tuned"):
        return ". The daemon tunes their number itself (autotune), as far as more of them help"
    if found.buffer is not None and stream.get("buffer_tuned"):
        return ". The daemon tunes the buffer itself (autotune), as far as more of it helps"
    return ""


def _bound(wanted: int, rates: Rates) -> str:
    return f"{wanted} workers would keep up, but `[daemon] workers` or --workers allow {rates.bound}"


def _unseen(rates: Rates) -> str:
    return "; its waits cannot be seen through a progress file" if rates.followed else ""


def _busy(rates: Rates) -> str:
    return f"{_workers(rates)} {rates.busy:.0%} busy"


def _workers(rates: Rates) -> str:
    return "its worker is" if rates.workers == 1 else f"its {rates.workers} workers are"


def _rate(per_s: float) -> str:
    return f"{per_s:.0f}" if per_s >= 10 else f"{per_s:.2g}"


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
