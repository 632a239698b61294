"""directory_that_counts tells where a program runs, if what it holds says that this decides its samples."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from prefetchd.workers.held_objects import MOST_ITEMS, held_objects

MOST_OBJECTS = 1000
"""How many objects are looked at: those that are near first."""
MOST_ASKED = 100
"""How many texts are asked whether they are paths."""
LONGEST = 1000


def directory_that_counts(parts: Mapping[str, Any]) -> str:
    """Returns the working directory if `parts` hold a relative path of something that is there; else nothing. Of a long
    list the first item alone is looked at."""
    texts = (_path(found) for _, found in itertools.islice(held_objects(parts), MOST_OBJECTS))
    asked = itertools.islice(filter(None, texts), MOST_ASKED)
    return os.getcwd() if any(map(os.path.lexists, asked)) else ""


def _path(found: Any) -> str:
    if type(found) in (list, tuple) and len(found) > MOST_ITEMS:
        found = found[0]
    if isinstance(found, PurePath):
        found = str(found)
    is_one = type(found) is str and 0 < len(found) <= LONGEST and found.isprintable() and not os.path.isabs(found)
    return found if is_one else ""
