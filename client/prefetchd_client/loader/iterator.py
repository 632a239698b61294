"""PrefetchIterator is one pass over an epoch."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, Protocol

from prefetchd.wire.stream_spec import StreamSpec
from prefetchd_client.batches.attachment import Attachment
from prefetchd_client.caller_warnings import warn_caller
from prefetchd_client.loader.forks import check_not_forked
from prefetchd_client.loader.moved_programs import is_of_forked_cuda
from prefetchd_client.loader.positions import Positions
from prefetchd_client.loader.sessions import Session
from prefetchd_client.loader.single_thread_guard import SingleThreadGuard
from prefetchd_client.session.cursors import ClientCursor, EndOfEpoch
from prefetchd_client.session.stream_client import MustMove, WaitTimedOut


class Epochs(Protocol):
    """Declares what an iterator needs of its loader."""

    dataset: Any
    num_workers: int
    timeout: float

    def __len__(self) -> int: ...

    @property
    def spec(self) -> StreamSpec: ...

    @property
    def reported_length(self) -> int | None: ...

    def begin_epoch(self) -> tuple[Session, ClientCursor]: ...

    def loop_change(self) -> MustMove | None: ...

    def take_over(
        self, session: Session, cursor: ClientCursor, why: MustMove | None
    ) -> tuple[Session, ClientCursor] | None: ...

    def end_cursor(self, session: Session, cursor: ClientCursor) -> None: ...


class PrefetchIterator(Iterator[Any]):
    """Iterates over the epoch that is next when its first batch is asked for. Living iterators are independent, but for
    their loader's `positions`, which follow whichever was asked last, and its `guard`: one thread at a time."""

    def __init__(self, loader: Epochs, positions: Positions, guard: SingleThreadGuard) -> None:
        self._loader = loader
        self._positions = positions
        self._guard = guard
        self._cursor: ClientCursor | None = None
        self._session: Session | None = None
        self._ending: weakref.finalize[..., Any] | None = None
        self._ended = False
        self._began_at = 0
        self._reported_length = loader.reported_length

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        if self._cursor is None or self._session is None:
            self._session, self._cursor = self._loader.begin_epoch()
            self._end_with(self._session, self._cursor)
            self._cursor.reported_length = self._reported_length
            self._began_at = self._cursor.step
        try:
            try:
                if (change := self._loader.loop_change()) is not None:
                    raise change
                return self._next_batch(self._session, self._cursor)
            except MustMove as why:
                # Without its traceback: the session that keeps the error would keep this iterator.
                moved = self._loader.take_over(self._session, self._cursor, why.with_traceback(None))
            except RuntimeError as error:
                moved = self._loader.take_over(self._session, self._cursor, None) if is_of_forked_cuda(error) else None
                if moved is None:
                    raise
            if moved is not None:
                self._session, self._cursor = moved
                self._end_with(self._session, self._cursor)
            return self._next_batch(self._session, self._cursor)
        except EndOfEpoch:
            if self._resumed_at_end:
                return self._next_epoch()
            self.end()
            raise StopIteration from None

    def _end_with(self, session: Session, cursor: ClientCursor) -> None:
        """Have this cursor end with the iterator, instead of a former one."""
        if self._ending is not None:
            self._ending.detach()
        self._ending = weakref.finalize(self, self._loader.end_cursor, session, cursor)
        # Not at exit: there the session ends with its cursors, which tell where the next run goes on.
        self._ending.atexit = False

    @property
    def _resumed_at_end(self) -> bool:
        """True when the iterator has resumed after its epoch's last batch, as from a state that was taken there."""
        return self._began_at > 0 and self._cursor is not None and not self._cursor.yielded

    def _next_epoch(self) -> Any:
        """Return the first batch of the epoch that follows."""
        assert self._cursor is not None
        assert self._session is not None
        self._loader.end_cursor(self._session, self._cursor)
        self._cursor, self._began_at = None, 0
        return next(self)

    def _next_batch(self, session: Session, cursor: ClientCursor) -> Any:
        """Returns the cursor's next batch, and notes where the trainer stands then. Raises what StreamClient.next_batch
        raises; a timeout as DataLoader words it, and why."""
        loader, positions = self._loader, self._positions
        check_not_forked(loader)
        try:
            with self._guard:
                try:
                    batch = session.next_batch(cursor, float(loader.timeout))
                except EndOfEpoch:
                    positions.end_epoch(session, cursor)
                    raise
                finally:
                    positions.note_beginning(cursor)
                positions.note_batch(session, cursor)
        except WaitTimedOut as why:
            raise RuntimeError(f"DataLoader timed out after {loader.timeout} seconds: {why}") from None
        if cursor.reported_length is not None and cursor.yielded > cursor.reported_length:
            warn_caller(_more_than_reported(loader, cursor))
        return batch

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


def _more_than_reported(loader: Epochs, cursor: ClientCursor) -> str:
    """Words the warning of too many batches as DataLoader does, which compares batches with samples."""
    text = (
        f"Length of IterableDataset {loader.dataset} was reported to be {cursor.reported_length}"
        f"(when accessing len(dataloader)), but {cursor.yielded} samples have been fetched. "
    )
    if not loader.num_workers:
        return text
    return (
        f"{text}For multiprocessing data-loading, this could be caused by not properly configuring the "
        "IterableDataset replica at each worker. Please see "
        "https://pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset for examples."
    )
