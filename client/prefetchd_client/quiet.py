"""quiet() shows no warnings of a block, and after it those that were shown once are not shown again."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def quiet(category: type[Warning] = Warning) -> Iterator[None]:
    """Hides all warnings of the category while its block runs, in any thread: none is shown, or raised.
    warnings.catch_warnings() would do that, too, but then Python forgets all that it has shown so far: each warning
    would come once more, and in each epoch. What it counts are changes that are told by warnings._filters_mutated();
    here the list is changed and put back."""
    entry = ("ignore", None, category, None, 0)
    filters: Any = warnings.filters
    filters.insert(0, entry)
    try:
        yield
    finally:
        # By identity: an equal one may be the user's.
        place = next((place for place, each in enumerate(filters) if each is entry), None)
        if place is not None:
            del filters[place]
