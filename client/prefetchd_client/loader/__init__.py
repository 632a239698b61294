"""The package has PrefetchLoader and what makes it a DataLoader: arguments, orders, ranks, iterators, positions,
devices."""

from prefetchd_client.loader.loader import PrefetchLoader

__all__ = ["PrefetchLoader"]
