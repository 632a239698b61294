"""Daemons in a memory cgroup with a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefetchd.ring.cgroups import cgroup_levels
from tests.scenario.watching import until


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup inside this process's own, with a limit; what is in it is killed at the end."""
    levels = [(version, level) for version, level in cgroup_levels("memory") if (level / "cgroup.procs").exists()]
    if not levels:
        pytest.skip("no memory cgroup can be seen")
    version, level = levels[0]
    group = level / f"prefetchd-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no right to make a memory cgroup: {error}")
    try:
        limit = group / ("memory.limit_in_bytes" if version == 1 else "memory.max")
        if not limit.exists():
            pytest.skip("the memory controller is not delegated to us")
        limit.write_text(str(limit_bytes))
        yield group
    finally:
        for pid in map(int, (group / "cgroup.procs").read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not (group / "cgroup.procs").read_text(), "the group is empty")
        group.rmdir()


def start_in_group(daemon, group: Path, *arguments: str) -> None:
    command = f"echo $$ > {group}/cgroup.procs; exec {sys.executable} -m prefetchd run --detach {' '.join(arguments)}"
    subprocess.run(["sh", "-c", command], env=daemon.environment, check=True, timeout=60)


def kills_in(group: Path) -> int:
    """Processes of the group that the kernel killed for memory."""
    events = group / "memory.events"
    text = events.read_text() if events.exists() else (group / "memory.oom_control").read_text()
    return int(dict(line.split() for line in text.splitlines())["oom_kill"])
