"""Packs states of an iterable dataset's shards as they travel: beside a batch, in messages, in a trainer's
checkpoint."""

from __future__ import annotations

import struct
from typing import Any, TypeAlias

MOST_BYTES = 48 * 1024
"""The longest state that is sent in messages, which must fit into packets; a shard with a longer one is iterated from
its beginning instead."""

ShardState: TypeAlias = tuple[int, bytes]
"""(number of the shard's batch that comes next, state: plain values, see plain_state)."""

_NUMBER = struct.Struct("<Q")


class Stated:
    """A batch with a state of its shard, as a worker writes it whose dataset has states. `following` is the number of
    the shard's batch that comes next after `state`; None: the one after this batch."""

    __slots__ = ("batch", "following", "state")

    def __init__(self, batch: Any, state: bytes, following: int | None = None) -> None:
        self.batch = batch
        self.state = state
        self.following = following

    def __reduce__(self) -> tuple[type[Stated], tuple[Any, bytes] | tuple[Any, bytes, int]]:
        # A client of before `following` reads the shorter form.
        if self.following is None:
            return Stated, (self.batch, self.state)
        return Stated, (self.batch, self.state, self.following)


def pack(state: ShardState) -> bytes:
    """Packs the state for Fill.keys, for a batch of a shard whose iterator is to begin there."""
    return _NUMBER.pack(state[0]) + state[1]


def unpack(blob: bytes) -> ShardState:
    """Unpacks what pack() gave. Raises struct.error when it was not packed so."""
    return _NUMBER.unpack_from(blob)[0], blob[_NUMBER.size :]
