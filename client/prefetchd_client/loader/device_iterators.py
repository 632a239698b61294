"""This module has the iterators of loaders whose batches go to a device, or are pinned."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

from prefetchd.wire.seed_words import device_seed
from prefetchd_client.device.copies import AHEAD, Copy
from prefetchd_client.loader.device_paths import CpuPath, DevicePath, PinnedPath
from prefetchd_client.loader.iterator import Epochs, PrefetchIterator
from prefetchd_client.loader.loader_state import ResumePoint
from prefetchd_client.loader.positions import Positions
from prefetchd_client.loader.single_thread_guard import SingleThreadGuard
from prefetchd_client.session.cursors import ClientCursor


class PinnedIterator(PrefetchIterator):
    """Yields batches in pinned memory."""

    def __init__(self, loader: Epochs, positions: Positions, guard: SingleThreadGuard, path: PinnedPath) -> None:
        super().__init__(loader, positions, guard)
        self._path = path

    def __next__(self) -> Any:
        self._path.begin(self._attachment)
        batch = super().__next__()
        return self._path.pinned(batch, self._attachment)


class CpuIterator(PrefetchIterator):
    """Yields batches after the transform."""

    def __init__(self, loader: Epochs, positions: Positions, guard: SingleThreadGuard, path: CpuPath) -> None:
        super().__init__(loader, positions, guard)
        self._path = path

    def __next__(self) -> Any:
        before = self._positions.resume_point()
        batch = super().__next__()
        assert self._cursor is not None
        try:
            return self._path.transformed(batch, _seed(self._loader, self._cursor))
        except BaseException:
            self._positions.restore(before)
            raise


@dataclasses.dataclass(slots=True)
class _Ahead:
    """Holds a batch that is on its way, and where the loader stands once it is yielded; or the error in its place."""

    copy: Copy | None
    resume_point: ResumePoint
    error: Exception | None = None


class DeviceIterator(PrefetchIterator):
    """Yields batches on the device, copied there while the ones before are worked on. It fetches ahead only what the
    daemon has offered: next() waits for its own batch, and for no other."""

    def __init__(self, loader: Epochs, positions: Positions, guard: SingleThreadGuard, path: DevicePath) -> None:
        super().__init__(loader, positions, guard)
        self._path = path
        self._ahead: deque[_Ahead] = deque()

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        self._path.begin(self._attachment)
        if not self._ahead:
            self._fetch_first()
        cursor = self._cursor
        assert cursor is not None
        while len(self._ahead) <= AHEAD and cursor.is_offered:
            self._fetch_ahead(cursor)
        due = self._ahead.popleft()
        if due.error is not None:
            try:
                raise due.error
            finally:
                # The error's traceback knows this frame, and the batch that failed.
                del due
        assert due.copy is not None
        batch = self._path.copies.hand_out(due.copy)
        self._positions.restore(due.resume_point)
        return batch

    def stop(self) -> None:
        super().stop()
        self._ahead.clear()

    def end(self) -> None:
        super().end()
        self._ahead.clear()

    def _fetch_first(self) -> None:
        """Fetches the batch that is due. Raises what next() of a plain iterator raises, and what copying and the
        transform raise."""
        before = self._positions.resume_point()
        self._path.copies.make_room()
        batch = super().__next__()
        self._put_in_line(batch, before)

    def _fetch_ahead(self, cursor: ClientCursor) -> None:
        before = self._positions.resume_point()
        assert self._session is not None
        try:
            self._path.copies.make_room()
            self._put_in_line(self._next_batch(self._session, cursor), before)
        except Exception as error:
            # In its turn, and with what stood before: a batch that failed was not yielded.
            self._ahead.append(_Ahead(None, before, error))

    def _put_in_line(self, batch: Any, before: ResumePoint) -> None:
        after = self._positions.resume_point()
        self._positions.restore(before)
        assert self._cursor is not None
        seed = _seed(self._loader, self._cursor) if self._path.draws else 0
        copy = self._path.start(batch, seed, self._attachment)
        self._ahead.append(_Ahead(copy, after))


def _seed(loader: Epochs, cursor: ClientCursor) -> int:
    """Returns the device seed of the batch that the cursor has just passed."""
    spec = loader.spec
    return device_seed(spec.seed, cursor.epoch, cursor.step - 1, spec.rank)
