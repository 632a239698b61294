"""Finds the control groups that this process is in, version 1 or 2. Sources: cgroups(7), cgroup-v2.rst of the
kernel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = "/sys/fs/cgroup"
MEMBERSHIP = "/proc/self/cgroup"


def cgroup_levels(controller: str, root: str = ROOT, membership: str = MEMBERSHIP) -> Iterator[tuple[int, Path]]:
    """Yields (version, directory) of each group that bounds what `controller` gives this process: its own first, then
    those above it, up to `root`. The directories need not exist: a container may see fewer groups than the kernel
    names."""
    try:
        lines = Path(membership).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, base = 2, Path(root)
            if not (base / "cgroup.controllers").exists():
                base = base / "unified"
        elif controller in controllers.split(","):
            version, base = 1, Path(root) / controller
        else:
            continue
        # The path begins with `/..` where the group lies outside of this process's cgroup namespace
        # (cgroup_namespaces(7)).
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            yield version, base.joinpath(*parts[:depth])
