"""own_randomness decides what a dataset draws while a sample is stored: the same whenever and wherever that is, and
nobody else's."""

from __future__ import annotations

import contextlib

from prefetchd_client.seeding import seeded

_GOLDEN = 0x9E3779B97F4A7C15
_LIMIT = (1 << 63) - 1


def own_randomness(index: int) -> contextlib.AbstractContextManager[None]:
    """Has torch, numpy and random draw what belongs to sample `index` while its block runs. Afterwards they go on as if
    nothing had been drawn: whether a sample was stored before must not show in what a transform draws after it."""
    return seeded((index + 1) * _GOLDEN & _LIMIT)
