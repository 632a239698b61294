"""Finds the raylets of this machine: Ray's process that makes a machine a node of a cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def raylets(processes: Path = Path("/proc")) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the pid of each raylet that runs here, and its options by name."""
    for entry in processes.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.path.basename(words[0]) == b"raylet":
            options = (os.fsdecode(word).lstrip("-").partition("=") for word in words[1:])
            yield int(entry.name), {name: value for name, _, value in options}
