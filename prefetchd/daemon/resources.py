"""What a stream owns in the world: its program segment and its ring. Made, shared and given up here."""

from __future__ import annotations

import itertools
import os

from prefetchd.ring.capacity import Room, aligned_slot_bytes, most_slots, slots_for
from prefetchd.ring.memory_limits import cgroup_headroom_bytes, free_bytes
from prefetchd.ring.segment import RingSegment, new_header, unlink
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.file_locks import reopen, try_lock
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.segment_layout import DAEMON_LOCK_OFFSET
from prefetchd.wire.stream_spec import StreamSpec, encode_spec

SHARED_MEMORY = "/dev/shm"


class StreamResources:
    """The segments of one stream. `close` leaves nothing behind."""

    def __init__(self, spec: StreamSpec) -> None:
        self.spec = spec
        self.program_fd = -1
        self.program_name = ""
        self.ring: RingSegment | None = None

    def take_program(self, name: str, fd: int, paths: RuntimePaths) -> None:
        """Takes over the program segment `name`, which the client made and whose descriptor `fd` is. Raises
        ProtocolError when it is not what it says."""
        prefix = paths.segment_name("program", "")
        try:
            if not name.startswith(prefix) or "/" in name[1:]:
                raise ProtocolError(f"a program segment {name!r}; allowed: {prefix}...")
            mine, named = os.fstat(fd), os.stat(SHARED_MEMORY + name)
            if (mine.st_dev, mine.st_ino) != (named.st_dev, named.st_ino) or mine.st_uid != os.geteuid():
                raise ProtocolError(f"the descriptor sent is not the program segment {name!r}")
            # The lock goes onto a description of our own; the client's, shared as well, ends when it lets go.
            own = reopen(fd)
        except (OSError, ValueError) as error:
            raise ProtocolError(f"the program segment {name!r} cannot be opened: {error}") from None
        finally:
            os.close(fd)
        try_lock(own, DAEMON_LOCK_OFFSET, shared=True)
        self.program_fd, self.program_name = own, name

    def create_ring(
        self, name: str, batch_bytes: int, slot_bytes: int, layout: bytes, generation: int, budget_bytes: int | None
    ) -> RingSegment:
        """Makes the ring. Raises BufferTooSmallError or NoSpaceError."""
        slot_bytes = aligned_slot_bytes(slot_bytes)
        room = Room(free_bytes(SHARED_MEMORY), SHARED_MEMORY, cgroup_headroom_bytes(), budget_bytes)
        slots = slots_for(self.spec, batch_bytes, slot_bytes, room)
        spec = encode_spec(self.spec)
        most = most_slots(self.spec, slots, varying=not layout)
        header = new_header(most, slot_bytes, self.spec.fingerprint, generation, spec, layout, self.program_name)
        self.ring = RingSegment(name, header, spec, layout, slots)
        return self.ring

    def close(self) -> None:
        """Unlinks and closes everything. Idempotent."""
        if self.ring is not None:
            self.ring.close()
            self.ring = None
        if self.program_fd >= 0:
            unlink(self.program_name)
            os.close(self.program_fd)
            self.program_fd = -1


class SegmentNames:
    """Names for new rings, unique among the daemons of one socket."""

    def __init__(self, paths: RuntimePaths) -> None:
        self._paths = paths
        self._count = itertools.count(1)

    def next_ring(self) -> str:
        return self._paths.segment_name("ring", f"{os.getpid():x}-{next(self._count):x}")
