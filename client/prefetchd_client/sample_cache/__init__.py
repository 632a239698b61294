"""The package keeps a sample cache: the deterministic part of a dataset, prepared once and kept in memory-mapped
files."""

from prefetchd_client.loader.transformed import Transformed
from prefetchd_client.sample_cache.dataset import SampleCache

__all__ = ["SampleCache", "Transformed"]
