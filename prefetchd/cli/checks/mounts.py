"""File systems in memory that are mounted here."""

from __future__ import annotations

import os
import re
from pathlib import Path

IN_MEMORY = ("tmpfs", "ramfs", "hugetlbfs")
MOUNTS = Path("/proc/self/mounts")
_OCTAL = re.compile(rb"\\([0-7]{3})")


def mounts_in_memory(table: Path = MOUNTS) -> list[tuple[str, str]]:
    """(place, type) of each. Raises OSError."""
    found = []
    for line in table.read_bytes().splitlines():
        _, place, kind, *_ = line.split(b" ")
        if kind.decode() in IN_MEMORY:
            found.append((os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), place)), kind.decode()))
    return found


def own_directories_in_memory(table: Path = MOUNTS) -> list[str]:
    """Where a ring of ours may lie, besides where we are told: in such a mount, or in a directory of ours right below
    it. Raises OSError."""
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
