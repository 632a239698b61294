"""is_recorded recognises packages that pip has put elsewhere than into a site-packages: `pip install --target DIR`,
with DIR in PYTHONPATH.

They are recorded there as in a site-packages. Reading all their sources for a fingerprint would take minutes.
"""

from __future__ import annotations

import csv
import functools
import os
import sys
from pathlib import Path


def is_recorded(path: str) -> bool:
    """Returns True when the file belongs to a package that was installed into one of sys.path's directories."""
    for entry in sys.path:
        if entry and path.startswith(inside := entry.rstrip(os.sep) + os.sep):
            top = path[len(inside) :].split(os.sep)[0]
            if top in _recorded_in(entry):
                return True
    return False


@functools.cache
def _recorded_in(directory: str) -> frozenset[str]:
    """Returns the top-level names that distributions have put into `directory`."""
    found: set[str] = set()
    for record in Path(directory).glob("*.dist-info/RECORD"):
        try:
            with record.open(encoding="utf-8", newline="") as lines:
                found.update(line[0].split("/")[0] for line in csv.reader(lines) if line)
        except (OSError, UnicodeError, csv.Error):
            continue
    return frozenset(found)
