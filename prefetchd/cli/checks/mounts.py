"""Lists file systems that are mounted here, and which of them are in memory."""

from __future__ import annotations

import os
import re
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
MOUNTS = Path("/proc/self/mounts")
_OCTAL = re.compile(rb"\\([0-7]{3})")


def mounts(table: Path = MOUNTS) -> list[tuple[str, str]]:
    """Lists (place, type) of each mount, the latest one last. Raises OSError."""
    found = []
    for line in table.read_bytes().splitlines():
        _, place, kind, *_ = line.split(b" ")
        found.append((os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), place)), kind.decode()))
    return found


def mounts_in_memory(table: Path = MOUNTS) -> list[tuple[str, str]]:
    """Lists (place, type) of each mount that is in memory. Raises OSError."""
    return [(place, kind) for place, kind in mounts(table) if kind in IN_MEMORY]


def type_of(directory: str, table: Path = MOUNTS) -> str:
    """Returns the type of the file system that `directory` is on. Raises OSError."""
    path = os.path.realpath(directory)
    around = [(place, kind) for place, kind in mounts(table) if os.path.commonpath([place, path]) == place]
    # Of two mounts on one place the later one hides the other.
    return max(reversed(around), key=lambda each: len(each[0]))[1]


def own_directories_in_memory(table: Path = MOUNTS) -> list[str]:
    """Lists where a ring of ours may lie, besides where the configuration says: in a mount in memory, or in a directory
    of ours right below one. Raises OSError."""
    found = []
    for place, _ in mounts_in_memory(table):
        try:
            if os.access(place, os.R_OK | os.W_OK | os.X_OK):
                found.append(place)
            with os.scandir(place) as entries:
                found += [
                    each.path
                    for each in entries
                    if each.is_dir(follow_symlinks=False) and each.stat(follow_symlinks=False).st_uid == os.geteuid()
                ]
        except OSError:
            # Another user's, or gone meanwhile.
            continue
    return found
