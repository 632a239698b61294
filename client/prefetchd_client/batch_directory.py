"""BatchDirectory reads a stream whose batches are files; it has no connection to a daemon."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from typing import Any

from prefetchd.wire.batch_file import STREAM_FILE, file_name
from prefetchd.wire.errors import ForkedError, ProtocolError, RemoteError
from prefetchd.wire.stream_spec import Position
from prefetchd.wire.trusted_paths import replace_file
from prefetchd_client.batches.batch_files import BatchFileReader
from prefetchd_client.session.long_wait import LongWait
from prefetchd_client.session.state_numbers import EPOCH_LIMIT, STEP_LIMIT, position_in, whole

FIRST_PAUSE_S = 0.0005
LONGEST_PAUSE_S = 0.02


class BatchDirectory:
    """Iterate over the batches in a directory that `store = {files = DIR}` declares, in order, epoch by epoch.

    It has no connection to a daemon, so the directory may lie on another machine's disk. next() waits for the next
    file; for a batch that cannot be made it raises RemoteError, and the next iterator continues after that batch.
    Batches stay valid and unchanged as long as they are held.

    Args:
        directory: The directory. It is opened at the first batch: the stream may be declared later.
        progress: The progress file that the stream's declaration names. Each batch is noted in it when it is handed
            out, so that batches before it may be deleted. A progress file must have one consumer only.
        epoch: The epoch to begin with, from 0.
        step: The batch within that epoch to begin with, from 0.
        timeout: Seconds after which next() raises RemoteError. Default: 0, never.
        classes: Classes that batches may hold instances of, beside lists, tuples, dicts, tensors and plain values.
            Default: none; an instance of another class raises CallerError.

    Raises:
        CallerError: `epoch` or `step` is negative.
        UntrustedPathError: When it is read: other users may write to the directory.

    Example::

        batches = BatchDirectory("/mnt/ram/train", progress="/mnt/ram/train.progress")
        for epoch in range(90):
            for images, labels in batches:
                train(images, labels)
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        progress: str | os.PathLike[str] | None = None,
        *,
        epoch: int = 0,
        step: int = 0,
        timeout: float = 0,
        classes: Iterable[type] = (),
    ) -> None:
        epoch, step = whole(epoch, "epoch", EPOCH_LIMIT), whole(step, "step", STEP_LIMIT)
        self.directory = os.fspath(directory)
        self._reader = BatchFileReader(self.directory, classes)
        self.waited_s = 0.0
        self._progress = os.fspath(progress) if progress is not None else None
        self._timeout_s = timeout
        self._position = (epoch, step)
        self._pid = os.getpid()
        self._described: dict[str, Any] | None = None
        # At once: the daemon may be far from there, and must know before the first batch can come.
        self._tell()

    @property
    def description(self) -> dict[str, Any]:
        """The daemon's description of the stream, as docs/batch-files.md defines it. Waits until it is there: until a
        first batch is made. Raises RemoteError when the one that comes first cannot be made."""
        wait = self._wait()
        while self._described is None:
            with contextlib.suppress(FileNotFoundError):
                self._described = self._reader.description()
                break
            self._raise_error_of(self._position)
            self._pause(wait, STREAM_FILE)
        return self._described

    def __len__(self) -> int:
        """Returns the number of batches in an epoch."""
        return int(self.description["batches_an_epoch"])

    def __iter__(self) -> Iterator[Any]:
        """Yields the rest of the current epoch."""
        epoch = self._position[0]
        while self._position[0] == epoch:
            if self._position[1] >= len(self):
                self._go_to((epoch + 1, 0))
                return
            batch = self._wait_for(self._position)
            # The batch that is handed out now is still the file's own: those before it are not.
            self._tell()
            self._position = (epoch, self._position[1] + 1)
            yield batch

    def state_dict(self) -> dict[str, int]:
        """Returns the next batch's epoch and step, in the form of PrefetchLoader's state_dict()."""
        return {"epoch": self._position[0], "step": self._position[1]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at the position that state_dict() returned."""
        self._go_to(position_in(state))

    def set_epoch(self, epoch: int) -> None:
        """Let the next iterator begin `epoch`, unless that is the current epoch already."""
        epoch = whole(epoch, "epoch", EPOCH_LIMIT)
        if epoch != self._position[0]:
            self._go_to((epoch, 0))

    def _go_to(self, position: Position) -> None:
        self._check_fork()
        self._position = position
        self._tell()

    def _wait_for(self, position: Position) -> Any:
        wait = self._wait()
        while True:
            with contextlib.suppress(FileNotFoundError):
                return self._reader.batch(position)
            self._raise_error_of(position)
            try:
                # Checked also when the pause has raised: another stream's directory explains the wait better than a
                # timeout does.
                self._pause(wait, file_name(position))
            finally:
                self._check()

    def _raise_error_of(self, position: Position) -> None:
        """Raises RemoteError when the batch at `position` cannot be made."""
        with contextlib.suppress(FileNotFoundError):
            why = self._reader.error(position)
            # The next iterator goes on after it, and before the first batch nothing is made until somebody does.
            self._position = (position[0], position[1] + 1)
            self._tell()
            raise RemoteError(f"epoch {position[0]}, batch {position[1]} cannot be made: {why.strip()}")

    def _wait(self) -> LongWait:
        self._check_fork()
        return LongWait(self.directory, *self._position)

    def _pause(self, wait: LongWait, name: str) -> None:
        waited_s = wait.waited_s
        if self._timeout_s and waited_s >= self._timeout_s:
            raise RemoteError(
                f"{os.path.join(self.directory, name)} has not come within {self._timeout_s} s: `prefetchd status` "
                "tells what its daemon is doing"
            )
        if waited_s >= wait.name_at_s:
            wait.name(f"{name} is not there; `prefetchd status` tells what its daemon is doing")
        # So that it is found late by a small part of what was waited anyway.
        time.sleep(min(max(waited_s, FIRST_PAUSE_S), LONGEST_PAUSE_S))
        self.waited_s += wait.waited_s - waited_s

    def _check_fork(self) -> None:
        if self._pid != os.getpid():
            raise ForkedError("this BatchDirectory is the parent process's; make one of its own in the forked child")

    def _check(self) -> None:
        """Raises ProtocolError when the directory has become another stream's."""
        if self._described is None:
            return
        with contextlib.suppress(FileNotFoundError):
            now = self._reader.description()
            if now["fingerprint"] != self._described["fingerprint"]:
                raise ProtocolError(
                    f"{self.directory} has batches of another stream now: {now['stream']!r} with fingerprint "
                    f"{now['fingerprint']}"
                )

    def _tell(self) -> None:
        """Writes the position to the progress file, if there is one. Replaces the file atomically, though the daemon
        would bear less."""
        if self._progress is None:
            return
        replace_file(self._progress, b"%d\n%d\n" % self._position)
