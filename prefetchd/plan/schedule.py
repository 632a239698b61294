"""Computes where every sample of an epoch falls: steps, rows, ordinals, ranks. Plain arithmetic on counts.

    padded length P     length rounded up to a multiple of world_size, or down with drop_uneven
    ordinal of (step, row) on rank r        (step * batch_size + row) * world_size + r         < P
    position in the epoch's order           ordinal mod length     (padding repeats the epoch's first samples)

Ranks partition range(P) as torch's DistributedSampler does. A position has as many steps as its rank has batches; with
drop_last a smaller last batch is left out.
"""

from __future__ import annotations

import dataclasses

from prefetchd.wire.stream_spec import StreamSpec


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The counts of one rank's epoch. `batch_size` 0 means that samples come as they are, one a step; -1, that nobody
    knows."""

    length: int
    batch_size: int
    drop_last: bool = False
    rank: int = 0
    world_size: int = 1
    drop_uneven: bool = False

    @property
    def rank_length(self) -> int:
        """Samples that this rank has in an epoch."""
        if self.drop_uneven:
            return self.length // self.world_size
        return -(-self.length // self.world_size)

    @property
    def rows_per_batch(self) -> int:
        return max(1, self.batch_size)

    @property
    def steps(self) -> int:
        """Batches that this rank has in an epoch."""
        if self.drop_last:
            return self.rank_length // self.rows_per_batch
        return -(-self.rank_length // self.rows_per_batch)

    def rows(self, step: int) -> int:
        """Returns samples in the batch at `step`: all but perhaps the last are full."""
        return min(self.rows_per_batch, self.rank_length - step * self.rows_per_batch)


def schedule_of(spec: StreamSpec) -> Schedule:
    """Returns the schedule of a stream whose length is known."""
    return Schedule(spec.length, spec.batch_size, spec.drop_last, spec.rank, spec.world_size, spec.drop_uneven)
