"""Find the live state of a program: what other processes may change while its workers run.

Workers are forks of the trainer. They keep their own copy of every ordinary object, but they share this:

1. Memory that is mapped as shared and can be written to: values and arrays of multiprocessing, tensors in shared
   memory, SharedMemory, a writable mmap or memmap. The address of the memory decides, not the type.
2. Queues, events, pipes and managers of multiprocessing. Locks and semaphores carry no value and do not count.
3. A file that is open for reading and writing.

A file that is open, or mapped, for reading only is no live state by itself. LiveSearch lists it in `files`, because its
content may still change: the caller compares its time of change.
"""

from __future__ import annotations

import bisect
import ctypes
import fcntl
import io
import mmap
import os
import re
import stat
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_ENTRY_BYTES = 8
_PRESENT = 1 << 63
_FILE_OR_SHARED = 1 << 61

_SHARED_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .(.).s \S+ (\S+) (\d+) *(.*)$", re.MULTILINE)

_CDATA: Any = ctypes.Structure.__mro__[1]

BY_CLASS = {
    ("multiprocessing.sharedctypes", "SynchronizedBase"): "a shared value",
    ("multiprocessing.shared_memory", "SharedMemory"): "shared memory",
    ("multiprocessing.shared_memory", "ShareableList"): "shared memory",
    ("multiprocessing.synchronize", "Event"): "an event that processes share",
    ("multiprocessing.queues", "Queue"): "a queue between processes",
    ("multiprocessing.queues", "SimpleQueue"): "a queue between processes",
    ("multiprocessing.connection", "_ConnectionBase"): "a pipe",
    ("multiprocessing.managers", "BaseProxy"): "an object of a manager",
}
"""The classes that are live state by what they are for: (module, class) to what it is called in messages."""

Check: TypeAlias = "Callable[[LiveSearch, Any], str]"
"""Returns what an object is called that is live state, and an empty string for one that is not."""


class SharedMapping(NamedTuple):
    """One mapping of this process with MAP_SHARED, from `begin` to `end`; `file` is (device, inode), and `path` its
    file's path."""

    begin: int
    end: int
    is_writable: bool
    file: tuple[bytes, int]
    path: str


class FileStamp(NamedTuple):
    """What stat(2) says of a file's content: its inode, its size in bytes, its time of change in ns."""

    inode: int
    size_bytes: int
    mtime_ns: int


class LiveSearch:
    """Collect the live state that a walk over a program meets. Made for one walk: the mappings of the process are read
    once."""

    def __init__(self) -> None:
        self.found: list[tuple[object, str]] = []
        """Each object that is live state, and what it is called in messages."""
        self.files: dict[str | int, FileStamp] = {}
        """The files that are open or mapped for reading, by path or descriptor, as they are now."""
        self._mappings: list[SharedMapping] | None = None
        self._begins: list[int] = []

    def is_live(self, check: Check, value: object) -> bool:
        """Return True when `value` is live state, by the `check` of its type. Remember it then."""
        try:
            what = check(self, value)
        except (OSError, ValueError, TypeError, AttributeError, RuntimeError):
            # A closed file, a released buffer, a tensor without storage: nothing that could be read.
            return False
        if what:
            self.found.append((value, what))
        return bool(what)

    def at(self, address: int) -> SharedMapping | None:
        """Return the shared mapping around `address`, or None for private memory."""
        if _is_private(address):
            return None
        if self._mappings is None:
            self._mappings = shared_mappings()
            self._begins = [each.begin for each in self._mappings]
        place = bisect.bisect(self._begins, address) - 1
        if place >= 0 and address < self._mappings[place].end:
            return self._mappings[place]
        return None

    def of_memory(self, address: int, what: str) -> str:
        """Return `what` when the memory at `address` is live state. Remember the file of a mapping that is read
        only."""
        mapping = self.at(address)
        if mapping is None:
            return ""
        assert self._mappings is not None
        if mapping.is_writable or any(each.is_writable and each.file == mapping.file for each in self._mappings):
            return f"{what} in a mapped file" if os.path.isfile(mapping.path) else what
        self.note_file(mapping.path)
        return ""

    def note_file(self, file: str | int) -> None:
        """Remember what a file is now, by its path or descriptor. Raises OSError."""
        if file not in self.files:
            self.files[file] = stamp_of(file)


def stamp_of(file: str | int) -> FileStamp:
    """Return the stamp of the file with this path or descriptor. Raises OSError."""
    status = os.stat(file)
    return FileStamp(status.st_ino, status.st_size, status.st_mtime_ns)


def shared_mappings() -> list[SharedMapping]:
    """Return this process's shared mappings, by address. Takes a millisecond or two where torch is loaded."""
    with open("/proc/self/maps", "rb") as maps:
        lines = _SHARED_MAPPING.findall(maps.read())
    return [
        SharedMapping(int(begin, 16), int(end, 16), writable == b"w", (device, int(inode)), os.fsdecode(path))
        for begin, end, writable, device, inode, path in lines
    ]


def _is_private(address: int) -> bool:
    """Return True when the page at `address` is known to be this process's own. Takes 2 us."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
            entry = int.from_bytes(
                os.pread(pagemap.fileno(), _ENTRY_BYTES, address // _PAGE_BYTES * _ENTRY_BYTES), sys.byteorder
            )
    except OSError:
        return False
    return bool(entry & _PRESENT) and not entry & _FILE_OR_SHARED


def check_for(kind: type) -> Check | None:
    """Return how instances of `kind` are checked, or None where none of them can be live state."""
    for base in kind.__mro__:
        what = BY_CLASS.get((base.__module__, base.__qualname__))
        if what is not None:
            return lambda _, __, what=what: what  # type: ignore[misc]
    for bases, check in _CHECKS:
        if issubclass(kind, bases):
            return check
    return None


def _tensor(search: LiveSearch, tensor: torch.Tensor) -> str:
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.is_nested or tensor.is_quantized:
            return ""
        return _storage(search, tensor.untyped_storage())


def _storage(search: LiveSearch, storage: torch.UntypedStorage) -> str:
    address = storage.data_ptr() if storage.device.type == "cpu" else 0
    return search.of_memory(address, "a shared tensor") if address else ""


def _array(search: LiveSearch, array: np.ndarray[Any, Any]) -> str:
    if array.flags.owndata or not array.size:
        return ""
    if isinstance(array, np.memmap) and array.mode == "c" and array.filename is not None:
        # A private mapping shows what is written to the file until its page is written here.
        search.note_file(os.path.abspath(array.filename))
    return search.of_memory(array.__array_interface__["data"][0], "a shared array")


def _ctypes_object(search: LiveSearch, value: Any) -> str:
    return search.of_memory(ctypes.addressof(value), "a shared value")


def _mapping(search: LiveSearch, mapping: mmap.mmap) -> str:
    buffer = np.frombuffer(mapping, np.uint8)
    return search.of_memory(buffer.__array_interface__["data"][0], "a memory mapping")


def _file(search: LiveSearch, file: Any) -> str:
    number = file.fileno()
    access = fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    if access == os.O_WRONLY or not stat.S_ISREG(os.fstat(number).st_mode):
        return ""
    if access == os.O_RDWR:
        return "a file that is open for reading and writing"
    search.note_file(number)
    return ""


_CHECKS: tuple[tuple[Any, Check], ...] = (
    (torch.Tensor, _tensor),
    (torch.UntypedStorage, _storage),
    (np.ndarray, _array),
    (_CDATA, _ctypes_object),
    (mmap.mmap, _mapping),
    ((io.FileIO, io.BufferedReader, io.BufferedRandom, io.TextIOWrapper), _file),
)
