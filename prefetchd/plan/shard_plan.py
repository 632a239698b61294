"""Plans a stream over an iterable dataset: which shard makes which batch, and every seed. Pure arithmetic.

Step t of an epoch is batch number t // shards of shard t mod shards; ring.shard_lengths knows which steps are void.
Nothing about samples can be planned: a shard's next batch begins where its last one ended.
"""

from __future__ import annotations

from prefetchd.plan.seeds import batch_seed, shard_seed
from prefetchd.wire.stream_spec import StreamSpec


class ShardPlan:
    """The counterpart of BatchPlan for iterable datasets."""

    def __init__(self, spec: StreamSpec) -> None:
        self.shards = spec.logical_shards
        self._spec = spec

    def row_count(self, epoch: int, step: int) -> int:
        """Returns the most samples of a batch: a shard's last one may have fewer."""
        return max(1, self._spec.batch_size)

    def shard_of(self, step: int) -> tuple[int, int]:
        """Returns (shard, number of the batch within the shard)."""
        number, shard = divmod(step, self.shards)
        return shard, number

    def begin_seed(self, epoch: int, shard: int) -> int:
        """Returns the seed of the generators when the shard's iterator is made."""
        return shard_seed(self._spec.seed, epoch, shard, self._spec.rank)

    def samples_seed(self, epoch: int, step: int) -> int:
        """Returns the seed of the generators when the samples of the batch are taken from the iterator."""
        return shard_seed(self._spec.seed, epoch, self.shards + step, self._spec.rank)

    def batch_seed(self, epoch: int, step: int) -> int:
        return batch_seed(self._spec.seed, epoch, step, self._spec.rank)
