"""describe_machine names the machine that figures were measured on: they say nothing without it."""

from __future__ import annotations

import contextlib
import os
import platform
from pathlib import Path

import torch

from prefetchd import __version__


def describe_machine() -> str:
    """Returns the machine, the versions, and how busy the machine is, in one line."""
    model = platform.processor() or "unknown CPU"
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    cpus = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    return (
        f"{model}, {cpus} CPUs, {memory_gib:.0f} GiB; Linux {platform.release()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, prefetchd {__version__}; load average {os.getloadavg()[0]:.1f}"
    )
