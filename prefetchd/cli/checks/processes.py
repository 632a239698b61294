"""Checks that workers may run: descriptors, CPUs, niceness."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from prefetchd.cli.checks.finding import ADVICE, OK, Finding
from prefetchd.supervisor.cpu_limits import usable_cpus

FEW_DESCRIPTORS = 4096


def findings() -> Iterator[Finding]:
    yield descriptors(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield affinity(len(os.sched_getaffinity(0)), os.cpu_count() or 1)
    yield quota(usable_cpus(), len(os.sched_getaffinity(0)))
    yield niceness(os.nice(0))


def descriptors(hard_limit: int) -> Finding:
    """Checks the limit on descriptors; the daemon raises its own limit as far as it may."""
    why = "each worker, trainer and stream takes a few"
    if hard_limit == resource.RLIM_INFINITY or hard_limit >= FEW_DESCRIPTORS:
        return Finding("descriptors", OK, "no limit" if hard_limit < 0 else f"up to {hard_limit}", why)
    fix = f"ulimit -Hn {FEW_DESCRIPTORS} (systemd: LimitNOFILE=, docker: --ulimit nofile=)"
    return Finding("descriptors", ADVICE, f"up to {hard_limit}", why, fix)


def affinity(bound_to: int, cpus: int) -> Finding:
    why = "a daemon that is started here, and its workers, use no others"
    if bound_to >= cpus:
        return Finding("CPU affinity", OK, f"all {cpus} CPUs", why)
    fix = "prefetchd run --reset-affinity, or start it without taskset, numactl or srun --cpus-per-task"
    return Finding("CPU affinity", ADVICE, f"bound to {bound_to} of {cpus} CPUs", why, fix)


def quota(usable: int, bound_to: int) -> Finding:
    why = "workers beyond it wait for a CPU; the daemon has so many by default"
    if usable >= bound_to:
        return Finding("CPU quota", OK, "none that matters", why)
    return Finding(
        "CPU quota", ADVICE, f"{usable} of {bound_to} CPUs", why, "raise it (docker run --cpus, CPUQuota=) if you can"
    )


def niceness(nice: int) -> Finding:
    why = "a daemon that is started here inherits it, and its workers are nicer still"
    if nice <= 0:
        return Finding("nice", OK, str(nice), why)
    return Finding("nice", ADVICE, f"this shell runs at nice {nice}", why, "start the daemon from one that does not")
