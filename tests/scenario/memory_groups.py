"""Daemons in a memory cgroup with a limit."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import memory_groups


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """A memory cgroup inside this process's own, with a limit; what is in it is killed at the end."""
    with contextlib.ExitStack() as stack:
        try:
            group = stack.enter_context(memory_groups.memory_group(limit_bytes))
        except OSError as error:
            pytest.skip(f"no right to make a memory cgroup: {error}")
        yield group


def start_in_group(daemon, group: Path, *arguments: str) -> None:
    command = f"echo $$ > {group}/cgroup.procs; exec {sys.executable} -m prefetchd run --detach {' '.join(arguments)}"
    subprocess.run(["sh", "-c", command], env=daemon.environment, check=True, timeout=60)
