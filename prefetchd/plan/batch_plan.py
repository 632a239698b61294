"""Plans one stream: which samples a batch has, with which ordinals and seeds. Workers evaluate it."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from prefetchd.plan.order import Permutation
from prefetchd.plan.schedule import Schedule, schedule_of
from prefetchd.plan.seeds import U64, batch_seed, order_key, sample_seeds, substitute
from prefetchd.wire.stream_spec import StreamSpec

BLOCK = 4096


@dataclasses.dataclass(frozen=True)
class PlannedRows:
    """Rows [first, first + len) of one batch: keys of the dataset, ordinals and seeds, one element a row."""

    indices: npt.NDArray[Any]
    ordinals: U64
    seeds: U64


class BatchPlan:
    """Maps (epoch, step, rows) to PlannedRows, for orders that are arithmetic.

    Pure but for a few cached blocks: the arithmetic is vectorised over BLOCK consecutive samples of the rank, which
    makes a row cost well under a microsecond, whatever the batch size.
    """

    def __init__(self, spec: StreamSpec) -> None:
        self.schedule: Schedule = schedule_of(spec)
        self._spec = spec
        self._permutation = functools.lru_cache(maxsize=4)(self._make_permutation)
        self._block = functools.lru_cache(maxsize=4)(self._make_block)

    def rows(self, epoch: int, step: int, first_row: int, end_row: int) -> PlannedRows:
        """Returns rows [first_row, end_row) of the batch at (epoch, step)."""
        first = step * self.schedule.rows_per_batch + first_row
        end = first + end_row - first_row
        parts = []
        while first < end:
            block = self._block(epoch, first // BLOCK)
            begin = first % BLOCK
            stop = min(begin + end - first, BLOCK)
            parts.append(PlannedRows(block.indices[begin:stop], block.ordinals[begin:stop], block.seeds[begin:stop]))
            first += stop - begin
        if not parts:
            return _read_only(*(np.empty(0, dtype=np.uint64) for _ in range(3)))
        if len(parts) == 1:
            return parts[0]
        return PlannedRows(
            np.concatenate([part.indices for part in parts]),
            np.concatenate([part.ordinals for part in parts]),
            np.concatenate([part.seeds for part in parts]),
        )

    def row_count(self, epoch: int, step: int) -> int:
        return self.schedule.rows(step)

    def given(self, epoch: int, step: int) -> list[int]:
        """Returns all keys of the batch: what __getitems__ is called with."""
        found: list[int] = self.rows(epoch, step, 0, self.schedule.rows(step)).indices.tolist()
        return found

    def batch_seed(self, epoch: int, step: int) -> int:
        return batch_seed(self._spec.seed, epoch, step, self._spec.rank)

    def substitute(self, epoch: int, ordinal: int, attempt: int) -> int:
        """Returns the index of the sample that is tried in place of a bad one; `attempt` counts from 1 to
        SUBSTITUTES."""
        return substitute(self._spec.seed, epoch, ordinal, attempt, self._spec.length)

    def _make_block(self, epoch: int, block: int) -> PlannedRows:
        spec = self._spec
        first = block * BLOCK
        samples = np.arange(first, min(first + BLOCK, self.schedule.rank_length), dtype=np.uint64)
        ordinals = samples * np.uint64(spec.world_size) + np.uint64(spec.rank)
        positions = ordinals % np.uint64(spec.length)
        indices = self._permutation(epoch).take(positions) if spec.order == "shuffle" else positions
        return _read_only(indices, ordinals, sample_seeds(spec.seed, epoch, ordinals))

    def _make_permutation(self, epoch: int) -> Permutation:
        return Permutation(order_key(self._spec.seed, epoch), self._spec.length)


def _read_only(*arrays: U64) -> PlannedRows:
    for array in arrays:
        array.flags.writeable = False
    return PlannedRows(*arrays)
