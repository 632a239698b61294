"""describe_machine and describe_gpu name what figures were measured on: they say nothing without it."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from pathlib import Path

from prefetchd import __version__

GPU_DEVICES = ("nvidia[0-9]*", "kfd", "dxg")
"""Of NVIDIA's driver, of AMD's, and of a GPU under Windows' Linux."""


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
        f"torch {importlib.metadata.version('torch')}, prefetchd {__version__}; load average {os.getloadavg()[0]:.1f}"
    )


def describe_gpu() -> str:
    """Returns the name of the GPU that torch would use, or an empty string where there is none."""
    if not any(True for pattern in GPU_DEVICES for _ in Path("/dev").glob(pattern)):
        return ""
    # Seconds, which a machine without a GPU is spared.
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""
