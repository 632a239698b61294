"""OwnRandomness decides what a dataset draws while a sample is stored: the same whenever and wherever that is, and
nobody else's."""

from __future__ import annotations

from typing import Any

from prefetchd.workers.own_generators import OwnGenerators
from prefetchd_client.seeding import seeded

_GOLDEN = 0x9E3779B97F4A7C15
_LIMIT = (1 << 63) - 1


class OwnRandomness:
    """Loads samples of `dataset`, each under seeds that belong to its index: torch's, numpy's and random's, and those
    of generators that the dataset holds."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._own = OwnGenerators({"dataset": dataset})
        self._is_first = True

    def load(self, index: int) -> Any:
        """Returns the dataset's sample. Afterwards all generators go on as if nothing had been drawn: whether a sample
        was stored before must not show in what a transform draws after it, nor in what the dataset is. Raises what the
        dataset raises."""
        if self._is_first:
            self._own.look()
        put_back = self._own.keep()
        try:
            sample = self._seeded(index)
            if self._is_first:
                self._is_first = False
                # Some come to be with the first sample.
                if self._own.look():
                    sample = self._seeded(index)
            return sample
        finally:
            put_back()

    def _seeded(self, index: int) -> Any:
        seed = (index + 1) * _GOLDEN & _LIMIT
        with seeded(seed):
            self._own.seed(seed)
            return self.dataset[index]
