"""Wraps tqdm, so that its bar says how loading does."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prefetchd.wire.errors import CallerError
from prefetchd_client.loader.facts import postfix_of
from prefetchd_client.loader.loader import PrefetchLoader

EVERY_S = 1.0


def progress(loader: PrefetchLoader, **options: Any) -> Any:
    """Return a tqdm bar over the loader, which shows how long the trainer waited and how many batches are ready.

    Args:
        loader: The loader to iterate over.
        options: Arguments of tqdm, such as desc= and disable=.

    Raises:
        CallerError: tqdm is not installed.

    Example::

        for batch in progress(loader): ...      # 12%|█▏  | 30/250 [00:03<00:22, waited 2 %, ready 23/27]
    """
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise CallerError("progress() needs tqdm: pip install tqdm") from None
    watched = _Watched(loader)
    watched.bar = tqdm(watched, **options)
    return watched.bar


class _Watched:
    """Gives the loader's batches, and now and then the bar's postfix."""

    def __init__(self, loader: PrefetchLoader) -> None:
        self.bar: Any = None
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        due_s = 0.0
        for batch in self._loader:
            now_s = time.monotonic()
            if now_s >= due_s and not self.bar.disable:
                due_s = now_s + EVERY_S
                self.bar.set_postfix_str(postfix_of(self._loader), refresh=False)
            yield batch
