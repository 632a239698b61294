"""Counts the CPUs that there are for workers. Reads, decides nothing."""

from __future__ import annotations

import os
from pathlib import Path

from prefetchd.ring.cgroups import MEMBERSHIP, ROOT, cgroup_levels


def usable_cpus(root: str = ROOT, membership: str = MEMBERSHIP) -> int:
    """Counts the CPUs that this process is bound to, or the whole ones that the quotas of its cgroups (version 1 or 2,
    all levels) allow, whatever is less; at least 1."""
    cpus = len(os.sched_getaffinity(0))
    for version, level in cgroup_levels("cpu", root, membership):
        quota = _quota_cpus(version, level)
        if quota is not None:
            cpus = min(cpus, max(1, quota))
    return cpus


def _quota_cpus(version: int, level: Path) -> int | None:
    try:
        if version == 1:
            quota_us, period_us = (int((level / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
        else:
            quota_us, period_us = (int(each) for each in (level / "cpu.max").read_text().split())
    except (OSError, ValueError):  # "max" is no number: no limit
        return None
    return quota_us // period_us if quota_us > 0 else None  # version 1 says -1
