"""Plans a stream whose order only a sampler knows: the keys come with each task, seeds are as ever."""

from __future__ import annotations

from typing import Any

import numpy as np

from prefetchd.plan.batch_plan import PlannedRows
from prefetchd.plan.keys import unpack
from prefetchd.plan.seeds import batch_seed, sample_seeds, substitute
from prefetchd.wire.stream_spec import Position, StreamSpec


class KeyedPlan:
    """The counterpart of BatchPlan for samplers' orders; knows the one batch whose keys it was given last.

    A sample's ordinal is (samples of its epoch before it, on this rank) * world_size + rank: no two ranks have the
    same, whatever their samplers do. A substitute is another key of the same batch: only the sampler knows which
    samples belong to the stream at all."""

    def __init__(self, spec: StreamSpec) -> None:
        self._spec = spec
        self._position: Position | None = None
        self.blob = b""
        self._given: Any = []
        self._planned = _NOTHING

    def use(self, position: Position, blob: bytes) -> None:
        """Takes the keys of the batch at `position`. Raises what unpickling them raises."""
        if (position, blob) == (self._position, self.blob):
            return
        self._given, keys, first = unpack(blob)
        spec = self._spec
        indices = np.empty(len(keys), dtype=object)
        for row, key in enumerate(keys):
            indices[row] = key
        ordinals = np.arange(first, first + len(keys), dtype=np.uint64) * np.uint64(spec.world_size)
        ordinals += np.uint64(spec.rank)
        self._planned = PlannedRows(indices, ordinals, sample_seeds(spec.seed, position[0], ordinals))
        self._position, self.blob = position, blob

    def row_count(self, epoch: int, step: int) -> int:
        return len(self._of(epoch, step).indices)

    def rows(self, epoch: int, step: int, first_row: int, end_row: int) -> PlannedRows:
        """Returns rows [first_row, end_row) of the batch at (epoch, step)."""
        planned = self._of(epoch, step)
        part = slice(first_row, end_row)
        return PlannedRows(planned.indices[part], planned.ordinals[part], planned.seeds[part])

    def given(self, epoch: int, step: int) -> Any:
        """Returns the keys of the batch in the sampler's own form: what __getitems__ is called with."""
        self._of(epoch, step)
        return self._given

    def batch_seed(self, epoch: int, step: int) -> int:
        return batch_seed(self._spec.seed, epoch, step, self._spec.rank)

    def substitute(self, epoch: int, ordinal: int, attempt: int) -> Any:
        """Returns the key that is tried in place of a bad one; `attempt` counts from 1 to SUBSTITUTES."""
        keys = self._planned.indices
        return keys[substitute(self._spec.seed, epoch, ordinal, attempt, len(keys))]

    def _of(self, epoch: int, step: int) -> PlannedRows:
        assert self._position == (epoch, step), f"the keys of {self._position}, not of {(epoch, step)}, are known"
        return self._planned


_NOTHING = PlannedRows(np.empty(0, dtype=object), np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.uint64))
