"""Packs the sample keys of one batch as bytes, for orders that only a sampler knows. The planner packs, workers unpack.

    offset 0  kind       u8    INTS, ONE or PICKLED; 7 bytes of padding
           8  first      u64   samples that come before this batch in its epoch, on this rank
          16  keys             INTS and ONE: i64, little-endian, one a sample; PICKLED: what the batch sampler gave

INTS stands for a list of Python's own ints, ONE for samples that come as they are, by a single int key. Whatever else a
sampler may give is pickled as it is. Workers unpickle it; the daemon passes it on and looks at nothing.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any

HEAD = struct.Struct("<B7xQ")
INTS, PICKLED, ONE, ONE_PICKLED = range(4)


def pack_batch(keys: Any, first: int) -> tuple[bytes, int]:
    """Packs what a batch sampler gave. Returns (blob, samples). Raises TypeError when it cannot be iterated over, and
    whatever pickling raises."""
    if type(keys) is list and set(map(type, keys)) <= {int}:
        try:
            return HEAD.pack(INTS, first) + _little_endian(array("q", keys)).tobytes(), len(keys)
        except OverflowError:
            pass
    samples = len(keys) if hasattr(keys, "__len__") else len(keys := list(keys))
    return HEAD.pack(PICKLED, first) + _pickled(keys), samples


def pack_one(key: Any, first: int) -> bytes:
    """Packs the key of one sample that comes as it is."""
    if type(key) is int and -(1 << 63) <= key < 1 << 63:
        return HEAD.pack(ONE, first) + key.to_bytes(8, "little", signed=True)
    return HEAD.pack(ONE_PICKLED, first) + _pickled(key)


def unpack(blob: bytes) -> tuple[Any, Sequence[Any], int]:
    """Unpacks a blob. Returns (what the sampler gave, its keys one by one, samples that come before)."""
    kind, first = HEAD.unpack_from(blob)
    if kind in (INTS, ONE):
        words = array("q")
        words.frombytes(memoryview(blob)[HEAD.size :])
        keys: list[Any] = _little_endian(words).tolist()
        return keys, keys, first
    given = pickle.loads(memoryview(blob)[HEAD.size :])
    if kind == ONE_PICKLED:
        return [given], [given], first
    return given, given if isinstance(given, (list, tuple)) else list(given), first


def digest(blob: bytes) -> int:
    """Computes a slot record's `plan`: the first eight bytes of the blob's SHA-1, as a little-endian number; 1 if that
    is 0, which stands for an order that is arithmetic."""
    return int.from_bytes(hashlib.sha1(blob, usedforsecurity=False).digest()[:8], "little") or 1


def _little_endian(words: array[int]) -> array[int]:
    if sys.byteorder == "big":
        words.byteswap()
    return words


def _pickled(keys: Any) -> bytes:
    try:
        return pickle.dumps(keys, protocol=5)
    except Exception:
        # Classes of the trainer's __main__ are known here by value alone.
        import cloudpickle

        return bytes(cloudpickle.dumps(keys, protocol=5))
