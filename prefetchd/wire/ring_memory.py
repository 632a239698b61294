"""Maps a ring: the segment's bytes, and each batch's payload as one run of addresses.

A batch in one slot is a slice of the mapping. One in several slots is mapped a second time, its slots' pages one after
another (mmap(2) with MAP_FIXED over a reservation), so that no batch ever needs adjacent slots.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import weakref
from typing import Any

from prefetchd.wire.errors import ProtocolError, RemoteError
from prefetchd.wire.segment_layout import (
    HEADER_BYTES,
    RESERVED_SLOTS,
    RESERVED_SLOTS_OFFSET,
    SegmentHeader,
    decode_header,
    slots_of_batch,
)

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_MAP_FIXED = 0x10
_MAP_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

Buffer = Any
"""A ctypes array: it exports its memory and can be watched by weakref, and it keeps its mapping alive."""


def map_shared(fd: int, size: int) -> mmap.mmap:
    """Maps the first `size` bytes behind `fd`, shared and writable. Memory is put behind them by fallocate, part by
    part: a hugetlbfs would otherwise set pages aside for all of them now. Raises OSError."""
    return mmap.mmap(fd, size, mmap.MAP_SHARED | _MAP_NORESERVE)


class RingMemory:
    """The segment behind `fd`, mapped shared and writable. Takes the descriptor over; owned by one process."""

    def __init__(self, fd: int) -> None:
        """Raises ProtocolError when the file is no ring of this layout version, OSError when it cannot be mapped;
        `fd` is closed then."""
        self._fd = fd
        self._array_types: dict[int, Any] = {}
        with contextlib.ExitStack() as undoing:
            undoing.callback(os.close, fd)
            size = os.fstat(fd).st_size
            if size < HEADER_BYTES:
                raise ProtocolError(f"a ring of {size} bytes is too short for its header")
            self.memory = map_shared(fd, size)
            undoing.callback(self.memory.close)
            self.header: SegmentHeader = decode_header(self.memory[:HEADER_BYTES], size)
            undoing.pop_all()

    @property
    def fd(self) -> int:
        return self._fd

    @property
    def is_whole(self) -> bool:
        """False when somebody has made the file shorter: whoever touches what was cut off dies of SIGBUS."""
        return os.fstat(self._fd).st_size >= self.header.segment_bytes

    @property
    def reserved_slots(self) -> int:
        """Slots of the ring that have memory by now."""
        return int(RESERVED_SLOTS.unpack_from(self.memory, RESERVED_SLOTS_OFFSET)[0])

    def batch(self, slot: int, span: int = 1) -> Buffer:
        """Returns the memory of the batch that begins in `slot` and takes `span` slots, as one ctypes array.

        With span > 1 the chain is read from the slot records, which the daemon wrote before it published the batch.
        """
        header = self.header
        if not 0 <= slot < header.slots:
            raise ProtocolError(f"slot {slot} of a ring of {header.slots}")
        if span == 1:
            return self.array_type(header.slot_bytes).from_buffer(self.memory, header.slot_payload_offset(slot))
        slots = slots_of_batch(self.memory, header, slot)  # type: ignore[arg-type]
        return self._map_one_after_another(slots)

    def array_type(self, size: int) -> Any:
        """Returns the ctypes array type of `size` bytes; making one is slow, so they are kept."""
        found = self._array_types.get(size)
        if found is None:
            found = self._array_types[size] = ctypes.c_ubyte * size
        return found

    def close(self) -> None:
        """Closes the descriptor, and the mapping unless somebody still looks at it: then it ends with them."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(BufferError):
            self.memory.close()

    def _map_one_after_another(self, slots: tuple[int, ...]) -> Buffer:
        slot_bytes = self.header.slot_bytes
        total = slot_bytes * len(slots)
        page_bytes = self.header.page_bytes
        # Longer by a page, as it may begin anywhere.
        room = total + page_bytes
        reserved = _mmap(None, room, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1, 0)
        base = -(-reserved // page_bytes) * page_bytes
        try:
            for place, slot in enumerate(slots):
                _mmap(
                    base + place * slot_bytes,
                    slot_bytes,
                    mmap.PROT_READ | mmap.PROT_WRITE,
                    mmap.MAP_SHARED | _MAP_FIXED | _MAP_NORESERVE,
                    self._fd,
                    self.header.slot_payload_offset(slot),
                )
        except BaseException:
            _libc.munmap(reserved, room)
            raise
        array = self.array_type(total).from_address(base)
        weakref.finalize(array, _libc.munmap, reserved, room)
        return array


def _mmap(address: int | None, length: int, protection: int, flags: int, fd: int, offset: int) -> int:
    found = _libc.mmap(address, length, protection, flags, fd, offset)
    if found == _FAILED or found is None:
        code = ctypes.get_errno()
        raise RemoteError(
            f"mmap of {length} bytes failed: {os.strerror(code)}; lower buffer= or raise vm.max_map_count"
        )
    return int(found)
