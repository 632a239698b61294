"""The thin side of prefetchd: a DataLoader whose batches are made by a daemon.

from prefetchd_client import PrefetchLoader
loader = PrefetchLoader(dataset, batch_size=64, shuffle=True)      # or PrefetchLoader.wrap(dataloader)
"""

from prefetchd_client.batch_directory import BatchDirectory
from prefetchd_client.loader import PrefetchLoader
from prefetchd_client.sample_cache import SampleCache

__all__ = ["BatchDirectory", "PrefetchLoader", "SampleCache"]
