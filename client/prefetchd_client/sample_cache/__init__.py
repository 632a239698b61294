"""A sample cache: the deterministic part of a dataset, prepared once and kept in memory-mapped files."""

from prefetchd_client.sample_cache.dataset import SampleCache
from prefetchd_client.sample_cache.transformed import Transformed

__all__ = ["SampleCache", "Transformed"]
