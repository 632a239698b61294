"""Keeps the directory of one stream's batch files, for the daemon: locks, describes, checks and cleans it.

Only files that are named as batches are, and STREAM_FILE, are ever touched. Nobody else may write to the directory, and
a file counts only if nobody else may have written it (wire.trusted_paths).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.batch_file import (
    DESCRIPTION_LIMIT_BYTES,
    LOCK_FILE,
    STREAM_FILE,
    check_version,
    decode_header,
    error_name,
    failed_position_of,
    file_name,
    is_half_replaced,
    is_temporary,
    position_of,
    read_description,
    temporary_name,
)
from prefetchd.wire.errors import CallerError, ProtocolError, UntrustedPathError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.stream_spec import Position
from prefetchd.wire.trusted_paths import check_directory, is_trusted_file, open_file, read_file, replace_file

HEAD_BYTES = 1 << 20
RESERVE_BYTES = 3 * 4096
"""Room for what the directory holds beside batches: STREAM_FILE, the next one while it is written, the lock. An error's
file takes less than the batch that is not made."""
ERROR_LIMIT_CHARACTERS = 1000


class BatchFiles:
    """The batch files of one directory, owned by one daemon from open() to close(). No call blocks but for the file
    system. `ring` is the created_ns of the ring that has the records, once there is one."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.ring = 0
        self._lock = LockFile(Path(directory) / LOCK_FILE)
        self._device = -1
        self._description = b""
        self._knob = (
            f"`chmod 700 {directory}` if it is yours, mount with mode=0700,uid=..., or choose another directory"
        )

    def open(self) -> None:
        """Takes the directory. Raises CallerError when there is none, it cannot be written to, another daemon has it,
        or others may write to it."""
        self.check()
        try:
            found = os.stat(self.directory)
            if not self._lock.acquire():
                raise CallerError(f"{self.directory} is another daemon's: choose another one, or stop that daemon")
        except OSError as error:
            raise self._useless(error) from None
        self._device = found.st_dev

    def check(self) -> None:
        """Looks at the directory, and takes nothing. Raises CallerError when there is none, or others may write to
        it."""
        try:
            check_directory(self.directory, self._knob)
        except OSError as error:
            raise self._useless(error) from None

    def holder(self) -> int | None:
        """Returns the process that has the directory, as LockFile.holder() does. Takes nothing."""
        try:
            return self._lock.holder()
        except OSError as error:
            raise self._useless(error) from None

    def _useless(self, error: OSError) -> CallerError:
        return CallerError(
            f"{self.directory} cannot hold batches: {error.strerror}. Make it, mount the RAM disk, or choose another "
            "directory"
        )

    def fault(self) -> str:
        """Says what is wrong with the directory now, for people; empty when nothing is."""
        try:
            found = os.stat(self.directory)
        except OSError as error:
            return f"{self.directory}: {error.strerror}"
        if found.st_dev != self._device:
            # Another RAM disk in its place will do; what lies below when none is mounted will not.
            if not os.path.ismount(self.directory):
                return f"{self.directory} is not the file system that it was: is the RAM disk unmounted?"
            self._device = found.st_dev
        try:
            check_directory(self.directory, self._knob)
        except (OSError, UntrustedPathError) as error:
            return str(error)
        if not os.access(self.directory, os.W_OK):
            return f"{self.directory} cannot be written to: is the RAM disk mounted read-only?"
        return ""

    def describe(self, description: bytes) -> None:
        """Writes the description of the files. Atomic; raises OSError."""
        self._description = description
        replace_file(self._path(STREAM_FILE), description, written=lambda: kill_point("daemon.files.undescribed"))

    def mend(self) -> None:
        """Writes the description again, and takes the lock again, if somebody has removed them."""
        with contextlib.suppress(OSError):
            if self._description and not os.path.exists(os.path.join(self.directory, STREAM_FILE)):
                self.describe(self._description)
            if not self._lock.is_held:
                self._lock.restore()

    def described(self) -> dict[str, object] | None:
        """Reads the description that a former daemon has left; None when there is none to be read."""
        try:
            return read_description(read_file(self._path(STREAM_FILE), DESCRIPTION_LIMIT_BYTES))
        except (OSError, ProtocolError, UntrustedPathError):
            return None

    def sizes(self) -> dict[Position, int]:
        """Lists all batches that are there, in order, by their bytes; a file that somebody else may have written is
        left out. Raises OSError when nobody can tell: that does not mean that any of them is gone."""
        found: dict[Position, int] = {}
        with os.scandir(self.directory) as entries:
            for entry in entries:
                position = position_of(entry.name)
                if position is not None:
                    with contextlib.suppress(OSError):
                        stated = entry.stat(follow_symlinks=False)
                        if is_trusted_file(stated):
                            found[position] = stated.st_size
        return dict(sorted(found.items()))

    def positions(self) -> list[Position]:
        """Lists the positions for which anything is there, in order, whosever it is."""
        with contextlib.suppress(OSError):
            return sorted(
                position for name in os.listdir(self.directory) if (position := position_of(name)) is not None
            )
        return []

    def is_of(self, position: Position, fingerprint: str) -> bool:
        """Returns True when the batch at `position` is whole, and of the stream with that fingerprint."""
        try:
            with open(open_file(self._path(file_name(position))), "rb") as file:
                _, metadata, _ = decode_header(file.read(HEAD_BYTES), os.fstat(file.fileno()).st_size)
            check_version(metadata)
        except (OSError, ProtocolError, UntrustedPathError):
            return False
        return metadata.get("fingerprint") == fingerprint

    def in_the_way(self) -> str:
        """Says what lies where a batch belongs and cannot be replaced by it, for people; empty: nothing. Raises
        OSError."""
        with os.scandir(self.directory) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and _is_ours(entry.name):
                    return f"{entry.path} is a directory where a batch belongs: remove it"
        return ""

    def tell_errors(self, errors: dict[Position, str]) -> None:
        """Puts each error in the place of its batch, which cannot be made, and removes all other errors: whoever waits
        for a batch reads why it does not come."""
        with contextlib.suppress(OSError):
            names = os.listdir(self.directory)
            told = {position for name in names if (position := failed_position_of(name)) is not None}
            for position in told - errors.keys():
                os.unlink(self._path(error_name(position)))
            for position in errors.keys() - told:
                why = errors[position][:ERROR_LIMIT_CHARACTERS].encode("utf-8", "replace")
                with contextlib.suppress(OSError):
                    replace_file(self._path(error_name(position)), why)

    def appear(self, position: Position) -> None:
        """Turns what a worker has written into the batch. Raises OSError."""
        os.rename(self._path(temporary_name(position, self.ring)), self._path(file_name(position)))

    def vanish(self, position: Position) -> None:
        """Removes the batch at `position`, whole or half. Whoever has it mapped keeps it."""
        for name in (file_name(position), temporary_name(position, self.ring)):
            with contextlib.suppress(OSError):
                os.unlink(self._path(name))

    def sweep(self, kept: set[Position]) -> int:
        """Removes all batches but the `kept` ones, and what was left half written. Returns how many files that were."""
        removed = 0
        with contextlib.suppress(OSError):
            for name in os.listdir(self.directory):
                position = position_of(name)
                if (
                    is_temporary(name)
                    or is_half_replaced(name)
                    or failed_position_of(name) is not None
                    or (position is not None and position not in kept)
                ):
                    with contextlib.suppress(OSError):
                        os.unlink(self._path(name))
                        removed += 1
        return removed

    def remove_all(self) -> None:
        """Removes every file of the stream."""
        self.sweep(set())
        with contextlib.suppress(OSError):
            os.unlink(self._path(STREAM_FILE))

    def close(self) -> None:
        """Gives the directory up; files stay. Idempotent."""
        with contextlib.suppress(OSError):
            self._lock.release()

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, name)


def _is_ours(name: str) -> bool:
    """Returns True for the name of a batch, of its error or of STREAM_FILE."""
    return name == STREAM_FILE or position_of(name) is not None or failed_position_of(name) is not None
