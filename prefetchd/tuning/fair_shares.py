"""Divides workers of a cluster among the streams that want some. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def fair_shares(total: int, wanted: Sequence[int]) -> list[int]:
    """Return how many of `total` workers each stream gets that wants so many: no stream gets more than it wants, and a
    stream that gets less has at most one less than any other."""
    shares = [0] * len(wanted)
    while total > 0:
        short = [stream for stream, most in enumerate(wanted) if shares[stream] < most]
        if not short:
            break
        stream = min(short, key=lambda each: shares[each])
        shares[stream] += 1
        total -= 1
    return shares
