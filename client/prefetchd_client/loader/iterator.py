"""PrefetchIterator is one pass over an epoch."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from prefetchd_client.batches.attachment import Attachment
from prefetchd_client.loader.sessions import Session
from prefetchd_client.session.cursors import ClientCursor, EndOfEpoch


class Epochs(Protocol):
    """Declares what an iterator needs of its loader."""

    def __len__(self) -> int: ...

    @property
    def told_length(self) -> int | None: ...

    def begin_epoch(self) -> tuple[Session, ClientCursor]: ...

    def next_batch(self, session: Session, cursor: ClientCursor) -> Any: ...

    def end_cursor(self, session: Session, cursor: ClientCursor) -> None: ...


class PrefetchIterator(Iterator[Any]):
    """Iterates over the epoch that is next when its first batch is asked for. Living iterators are independent."""

    def __init__(self, loader: Epochs) -> None:
        self._loader = loader
        self._cursor: ClientCursor | None = None
        self._session: Session | None = None
        self._ended = False
        self._told_length = loader.told_length

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._cursor is None or self._session is None:
            self._session, self._cursor = self._loader.begin_epoch()
            self._cursor.told_length = self._told_length
            # Not at exit: there the session ends with its cursors, which tell where the next run goes on.
            weakref.finalize(self, self._loader.end_cursor, self._session, self._cursor).atexit = False
        try:
            return self._loader.next_batch(self._session, self._cursor)
        except EndOfEpoch:
            self.end()
            raise StopIteration from None

    def __getstate__(self) -> Any:
        # Without this, a copy would be an iterator over another epoch.
        raise NotImplementedError(f"{type(self).__name__} cannot be pickled")

    @property
    def _attachment(self) -> Attachment | None:
        """The ring that batches come out of, or None as long as there is none."""
        return self._session.attachment if self._session is not None else None

    @property
    def _num_yielded(self) -> int:
        """The number of batches that this iterator has yielded, under the name that DataLoader's iterator has for
        it."""
        return self._cursor.yielded if self._cursor is not None else 0

    @property
    def _workers(self) -> tuple[()]:
        """An empty tuple, for whoever waits for the processes of DataLoader's iterator, or ends them: the daemon's are
        none of this process's."""
        return ()

    def _shutdown_workers(self) -> None:
        """Ends the iterator; frameworks end DataLoader's so in the middle of an epoch."""
        self.end()

    def __len__(self) -> int:
        return len(self._loader)

    def stop(self) -> None:
        """Has the iterator yield nothing more: the loader is closing."""
        self._ended = True

    def end(self) -> None:
        """Has the iterator yield nothing more, and gives up what was prefetched for it. Idempotent."""
        self._ended = True
        if self._cursor is not None and self._session is not None:
            self._loader.end_cursor(self._session, self._cursor)
