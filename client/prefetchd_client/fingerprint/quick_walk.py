"""QuickWalks takes a fingerprint only if that takes no longer than a fork would."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import numpy as np
import torch

from prefetchd_client.fingerprint.walk import Plain, Walk

WITHIN_S = 0.03
"""Seconds of the CPU that the walks may take: on a busy machine a fork waits for it, too."""
MOST_BYTES = 32 << 20
"""The bytes of arrays and tables together that are read within the time above."""
_SAMPLED = 32


class TooLong(Exception):  # noqa: N818 - it is none
    """The fingerprint would take longer than the walks may."""


class QuickWalks:
    """Makes the walks of one fingerprint, which share the time and the bytes that they may take; each raises TooLong
    beyond that."""

    def __init__(self) -> None:
        self._until_s = time.thread_time() + WITHIN_S
        self._left_bytes = MOST_BYTES

    def __call__(self, plain: Plain, masked: frozenset[int] = frozenset()) -> Walk:
        """Makes a walk, as Walk() does."""
        return _QuickWalk(self, plain, masked)

    def take(self, nbytes: int) -> None:
        """Counts `nbytes` that are about to be read. Raises TooLong when they are too many, or the time is over."""
        self._left_bytes -= nbytes
        if self._left_bytes < 0 or time.thread_time() > self._until_s:
            raise TooLong


class _QuickWalk(Walk):
    def __init__(self, bounds: QuickWalks, plain: Plain, masked: frozenset[int]) -> None:
        super().__init__(plain, masked)
        self._bounds = bounds

    def take_container(self, value: Sequence[object] | dict[object, object], kind: type) -> None:
        self._bounds.take(_about_bytes(value))
        super().take_container(value, kind)

    def take_object(self, value: object, kind: type) -> None:
        if isinstance(value, np.ndarray):
            self._bounds.take(value.nbytes)
        elif isinstance(value, torch.Tensor):
            # Sparse ones have no nbytes: as if they were dense.
            self._bounds.take(value.numel() * value.element_size())
        else:
            self._bounds.take(0)
        super().take_object(value, kind)


def _about_bytes(value: Sequence[object] | dict[object, object]) -> int:
    """Estimates a container's bytes by a few of its elements."""
    length = len(value)
    if not length:
        return 0
    if isinstance(value, dict):
        few: list[object] = [item for pair, _ in zip(value.items(), range(_SAMPLED)) for item in pair]
        return sum(map(sys.getsizeof, few)) * max(1, length // _SAMPLED)
    few = list(value[:: max(1, length // _SAMPLED)])
    return sum(map(sys.getsizeof, few)) * length // len(few)
