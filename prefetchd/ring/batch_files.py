"""The directory of one stream's batch files, as the daemon sees it: locked, described, looked at, and cleaned.

Only what is named as batches are, and STREAM_FILE, is ever touched.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.batch_file import (
    DESCRIPTION_LIMIT_BYTES,
    LOCK_FILE,
    STREAM_FILE,
    TEMPORARY_SUFFIX,
    decode_header,
    error_name,
    failed_position_of,
    file_name,
    is_temporary,
    position_of,
    read_description,
    temporary_name,
)
from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.regular_files import open_regular, read_first, read_regular
from prefetchd.wire.stream_spec import Position

HEAD_BYTES = 1 << 20
RESERVE_BYTES = 3 * 4096
"""What the directory holds beside batches: STREAM_FILE, the next one while it is written, the lock. An error's file
takes less than the batch that is not made."""
ERROR_LIMIT_CHARACTERS = 1000


class BatchFiles:
    """Owned by one daemon from open() to close(). No call blocks but for the file system. `ring` is the created_ns of
    the ring that has the records, once there is one."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.ring = 0
        self._lock = LockFile(Path(directory) / LOCK_FILE)
        self._device = -1
        self._description = b""

    def open(self) -> None:
        """Raises CallerError when there is no such directory, it cannot be written to, or another daemon has it."""
        try:
            found = os.stat(self.directory)
            if not self._lock.acquire():
                raise CallerError(f"{self.directory} is another daemon's: choose another one, or stop that daemon")
        except OSError as error:
            raise CallerError(
                f"{self.directory} cannot hold batches: {error.strerror}. Make it, mount the RAM disk, or choose "
                "another directory"
            ) from None
        self._device = found.st_dev

    def fault(self) -> str:
        """What is wrong with the directory now, for people; empty when nothing is."""
        try:
            found = os.stat(self.directory)
        except OSError as error:
            return f"{self.directory}: {error.strerror}"
        if found.st_dev != self._device:
            # Another RAM disk in its place will do; what lies below when none is mounted will not.
            if not os.path.ismount(self.directory):
                return f"{self.directory} is not the file system that it was: is the RAM disk unmounted?"
            self._device = found.st_dev
        if not os.access(self.directory, os.W_OK):
            return f"{self.directory} cannot be written to: is the RAM disk mounted read-only?"
        return ""

    def describe(self, description: bytes) -> None:
        """Says what the files are. Atomic; raises OSError."""
        self._description = description
        path = os.path.join(self.directory, STREAM_FILE)
        temporary = path + TEMPORARY_SUFFIX
        with open(temporary, "wb") as file:
            file.write(description)
        kill_point("daemon.files.undescribed")
        os.replace(temporary, path)

    def mend(self) -> None:
        """Says again what the files are, and takes the lock again, if somebody has removed that."""
        with contextlib.suppress(OSError):
            if self._description and not os.path.exists(os.path.join(self.directory, STREAM_FILE)):
                self.describe(self._description)
            if not self._lock.is_held:
                self._lock.restore()

    def described(self) -> dict[str, object] | None:
        """What a former daemon said that the files are, or None."""
        try:
            return read_description(read_regular(self._path(STREAM_FILE), DESCRIPTION_LIMIT_BYTES))
        except (OSError, ProtocolError):
            return None

    def sizes(self) -> dict[Position, int]:
        """All batches that are there, in order, by their bytes. Raises OSError when nobody can tell: then none of them
        is gone for that."""
        found: dict[Position, int] = {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                position = position_of(entry.name)
                if position is not None:
                    with contextlib.suppress(OSError):
                        about = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(about.st_mode):
                            found[position] = about.st_size
        return dict(sorted(found.items()))

    def is_of(self, position: Position, fingerprint: str) -> bool:
        """True when the batch at `position` is whole, and of the stream with that fingerprint."""
        try:
            fd = open_regular(self._path(file_name(position)))
            try:
                head = read_first(fd, HEAD_BYTES)
                _, metadata, _ = decode_header(head, os.fstat(fd).st_size)
            finally:
                os.close(fd)
        except (OSError, ProtocolError):
            return False
        return metadata.get("fingerprint") == fingerprint

    def in_the_way(self) -> str:
        """What lies where a batch belongs and cannot be replaced by it, for people; empty: nothing. Raises OSError."""
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and _is_ours(entry.name):
                    return f"{entry.path} is a directory where a batch belongs: remove it"
        return ""

    def tell_errors(self, errors: dict[Position, str]) -> None:
        """These batches cannot be made, and no others: whoever waits for one finds why in its place."""
        with contextlib.suppress(OSError):
            names = os.listdir(self.directory)
            told = {position for name in names if (position := failed_position_of(name)) is not None}
            for position in told - errors.keys():
                os.unlink(self._path(error_name(position)))
            for position in errors.keys() - told:
                with contextlib.suppress(OSError):
                    self._tell_error(position, errors[position])

    def _tell_error(self, position: Position, error: str) -> None:
        temporary = self._path(temporary_name(position, self.ring))
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with open(fd, "w", encoding="utf-8", errors="replace") as file:
            file.write(error[:ERROR_LIMIT_CHARACTERS])
        os.rename(temporary, self._path(error_name(position)))

    def appear(self, position: Position) -> None:
        """What a worker has written is the batch from now on. Raises OSError."""
        os.rename(self._path(temporary_name(position, self.ring)), self._path(file_name(position)))

    def vanish(self, position: Position) -> None:
        """There is no batch at `position`, whole or half. Who has it mapped keeps it."""
        for name in (file_name(position), temporary_name(position, self.ring)):
            with contextlib.suppress(OSError):
                os.unlink(self._path(name))

    def sweep(self, kept: set[Position]) -> int:
        """Removes all batches but the `kept` ones, and what was left half written; how many files that were."""
        removed = 0
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                position = position_of(name)
                if (
                    is_temporary(name)
                    or failed_position_of(name) is not None
                    or (position is not None and position not in kept)
                ):
                    with contextlib.suppress(OSError):
                        os.unlink(self._path(name))
                        removed += 1
        return removed

    def remove_all(self) -> None:
        """Leaves nothing of the stream."""
        self.sweep(set())
        with contextlib.suppress(OSError):
            os.unlink(self._path(STREAM_FILE))

    def close(self) -> None:
        """The directory is anybody's again; files stay. Idempotent."""
        with contextlib.suppress(OSError):
            self._lock.release()

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def _is_ours(name: str) -> bool:
    """True of what a batch, its error or STREAM_FILE is called."""
    return name == STREAM_FILE or position_of(name) is not None or failed_position_of(name) is not None
