"""The package is the trainer's side of prefetchd: a DataLoader whose batches are made by a daemon.

from prefetchd_client import PrefetchLoader
loader = PrefetchLoader(dataset, batch_size=64, shuffle=True)      # or PrefetchLoader.wrap(dataloader)
"""

# ruff: noqa: E402
from prefetchd_client.own_version import VERSION, check_imported

# Before anything else: what follows may not be there in another version.
check_imported()

from prefetchd_client.connection.early_start import begin_early

# Before anything is imported that takes long.
begin_early()

from prefetchd_client.batch_directory import BatchDirectory
from prefetchd_client.forking.fork_preparation import prepare_to_fork
from prefetchd_client.loader.loader import PrefetchLoader
from prefetchd_client.loader.progress_bar import progress
from prefetchd_client.sample_cache import SampleCache

prepare_to_fork()

__version__ = VERSION

__all__ = ["BatchDirectory", "PrefetchLoader", "SampleCache", "__version__", "progress"]
