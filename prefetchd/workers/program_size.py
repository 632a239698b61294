"""Estimates how large a program is, before it is pickled: to look at each of millions of objects copies all their pages
in a fork, and takes seconds."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from prefetchd.ring.memory_limits import available_bytes, cgroup_headroom_bytes, free_bytes
from prefetchd.wire.runtime_paths import SHARED_MEMORY
from prefetchd.workers.held_objects import MOST_ITEMS, held_objects

SAMPLED = 256
"""How many elements of a long list, dict or set stand for the others."""

COMFORTABLE_SHARE = 2
"""The share of the free memory that a program may take to be written beside the memory that it takes already: one part
in so many."""


def pickle_estimate(roots: Mapping[str, Any]) -> int:
    """Estimates how many bytes the pickle of `roots` will take for its long lists, tuples, dicts and sets, by a sample
    of each. What is not in one of these, or lies beyond what held_objects() looks at, counts nothing."""
    return sum(_estimate(found) for _, found in held_objects(roots))


def room_bytes() -> int:
    """Returns how large a program may be to be written now: it is in shared memory then, beside this process."""
    left = [free_bytes(SHARED_MEMORY), available_bytes(), cgroup_headroom_bytes()]
    return min(each for each in left if each is not None) // COMFORTABLE_SHARE


def _estimate(found: Any) -> int:
    kind = type(found)
    if kind in (list, tuple):
        length = len(found)
        sample = found[:: max(1, length // SAMPLED)]
    elif kind in (set, frozenset):
        length, sample = len(found), list(itertools.islice(found, SAMPLED))
    elif kind is dict:
        length, sample = len(found), list(itertools.islice(found.items(), SAMPLED))
    else:
        return 0
    return int(_pickled_bytes(sample) / len(sample) * length) if length > MOST_ITEMS else 0


def _pickled_bytes(sample: Sequence[Any]) -> int:
    try:
        return len(pickle.dumps(sample, protocol=5))
    except Exception:
        # By value, perhaps, or not at all: whoever pickles it will know.
        return 0
