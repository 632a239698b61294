"""Decides which worker makes which batches, where that matters. Pure.

Batches of an iterable dataset's shard are made by the worker that has the shard's iterator (decision 0023). Batches
that are dealt go to the workers in turn (decision 0093).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from prefetchd.wire.stream_spec import Position

NOBODY = 0
"""The number of a worker that does not exist."""

WAITING_A_WORKER = 4
WAITING_AT_LEAST = 32


class HasPlace(Protocol):
    """The part of a worker that is needed here."""

    number: int
    worker_index: int


class ShardAffinity:
    """Gives each of `shards` a home among the workers of one stream, whose batches are those of its shards in turn.
    Each shard stays where it is as long as workers come and go one by one; a shard whose worker is gone has NOBODY
    until another one has that place."""

    def __init__(self, shards: int, workers: Mapping[int, HasPlace]) -> None:
        """`workers` is the stream's own mapping; whoever changes it calls changed()."""
        self._shards = shards
        self._workers = workers
        self._wanted = 0
        self._numbers: list[int] | None = None

    def of(self, position: Position) -> int:
        """Returns the number of the worker that is to make the batch there."""
        if self._numbers is None:
            self._numbers = self._found()
        return self._numbers[position[1] % self._shards]

    def changed(self) -> None:
        """Has the homes found anew: workers have come or gone."""
        self._numbers = None

    def want(self, workers: int) -> None:
        """Says how many workers the stream is to have."""
        if workers != self._wanted:
            self._wanted, self._numbers = workers, None

    @property
    def most_waiting(self) -> int:
        """The number of pieces that may wait for their own workers while more are claimed: one worker may be so far
        ahead of others."""
        return WAITING_AT_LEAST + WAITING_A_WORKER * self._wanted

    def _found(self) -> list[int]:
        by_index = {each.worker_index: each.number for each in self._workers.values()}
        if len(by_index) >= self._wanted > 0:
            numbers = [by_index[worker_index] for worker_index in sorted(by_index)]
        else:
            numbers = [by_index.get(worker_index, NOBODY) for worker_index in range(self._wanted)] or [NOBODY]
        return [numbers[shard % len(numbers)] for shard in range(self._shards)]
