"""Keeps the segments of all streams: made, grown and reserved as the engine asks, and adopted from a dead daemon."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial

from prefetchd.daemon.engine.commands import CreateRing
from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.file_backed_ring import FILES
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.segments.recovery import find_streams
from prefetchd.daemon.segments.resources import SegmentNames, StreamResources
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.ring.batch_files import BatchFiles
from prefetchd.ring.file_ring import FileRing
from prefetchd.ring.segment import RingSegment
from prefetchd.wire.errors import NoSpaceError, PrefetchdError
from prefetchd.wire.messages import Program, Published
from prefetchd.wire.os_errors import why
from prefetchd.wire.own_segments import ATTEMPTS, make_named
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.segment_layout import DEPARTED, MEMORY_MODES, decode_memory_mode

BURIED_WITHIN_S = 2.0
BURIED_LOOK_AGAIN_S = 0.005

log = logging.getLogger("prefetchd")


class StreamRings:
    """Keeps what each stream owns in the world, by the stream's number. `memory_bytes` is what all rings may have."""

    def __init__(
        self,
        loop: Loop,
        engine: Engine,
        paths: RuntimePaths,
        *,
        generation: int,
        memory_bytes: int | None,
        is_burying: Callable[[], bool],
    ) -> None:
        """`is_burying` tells whether a process of a dropped stream still lives."""
        self.resources: dict[int, StreamResources] = {}
        # The directories of batch files, by name; of FileStreams.
        self.files: dict[str, BatchFiles] = {}
        self._prefaulting: set[int] = set()
        self._loop = loop
        self._engine = engine
        self._paths = paths
        self._names = SegmentNames(paths)
        self._generation = generation
        self._memory_bytes = memory_bytes
        self._is_burying = is_burying

    def ring(self, stream: int) -> RingSegment | None:
        """Returns the stream's ring, to be read and written now; None when there is none, or somebody has cut it
        short."""
        resources = self.resources.get(stream)
        ring = resources.ring if resources is not None else None
        return ring if ring is not None and ring.is_whole else None

    def drop_cut(self) -> None:
        """Fails and drops streams whose rings somebody has made shorter: their batches are gone, and to touch them
        would end us (decision 0102)."""
        for number, resources in list(self.resources.items()):
            ring = resources.ring
            if ring is not None and not ring.is_whole:
                why = (
                    f"somebody has made the ring {ring.directory}{ring.name} shorter than its "
                    f"{ring.header.segment_bytes} bytes: its batches are gone. Make the loader again"
                )
                log.error("ring cut short", extra={"fields": {"stream": resources.spec.name, "why": why}})
                self._engine.fail(number, why)
                self._engine.drop(number, "")

    def marks_of(self, created_ns: int, consumer: int) -> tuple[int, ...]:
        """Returns what the consumer record `consumer` of that ring says is held; empty when there is no such record."""
        for each in self.resources.values():
            ring = each.ring
            is_it = ring is not None and ring.header.created_ns == created_ns and ring.is_whole
            if ring is not None and is_it and 0 <= consumer < ring.header.consumers:
                return ring.marks(consumer)
        return ()

    def offers(self, session: int, message: Published) -> None:
        """Notes in the ring what the session is about to be offered. To be called before it is sent the message: after
        a kill in between, the ring may say too much, and never too little (decision 0017)."""
        stream = self._engine.stream_of(session)
        ring = self.ring(stream.number) if stream is not None else None
        if stream is not None and ring is not None:
            ring.offers.record(stream.consumers[session].record, message)

    def clear_released_offers(self, session: int, slots: Iterable[int] | None = None) -> None:
        """Clears offers in the ring whose leases have ended: those of the session's consumer, on `slots` or on any."""
        stream = self._engine.stream_of(session)
        ring = self.ring(stream.number) if stream is not None else None
        if stream is not None and ring is not None:
            is_leased = partial(stream.leases.is_held, session)
            ring.offers.clear_released(stream.consumers[session].record, is_leased, slots)

    def resources_of(self, stream: int) -> StreamResources:
        """Returns the stream's resources; makes them if it had none yet."""
        found = self._engine.streams.get(stream)
        if stream not in self.resources and found is not None:
            self.resources[stream] = StreamResources(found.spec)
        return self.resources[stream]

    def identify(self, stream: int) -> None:
        """Writes the stream's fingerprint, which has become known, into its ring."""
        found, resources = self._engine.streams.get(stream), self.resources.get(stream)
        if found is not None and resources is not None:
            resources.identify(found.spec.fingerprint)

    def take_program(self, stream: StreamState, program: Program, fd: int) -> None:
        """Takes over `fd`, the stream's program. The first one stays: a fork and another trainer may both have been
        asked, and have the same. Raises ProtocolError."""
        resources = self.resources.get(stream.number)
        if resources is not None and resources.program_fd >= 0:
            second = StreamResources(stream.spec)
            second.take_program(program.name, fd, self._paths)
            second.close()
            return
        if resources is None:
            resources = StreamResources(stream.spec)
        resources.take_program(program.name, fd, self._paths)
        kill_point("daemon.program.taken")
        self.resources[stream.number] = resources

    def free_slot(self, stream: int, slot: int, generation: int) -> None:
        """Removes the batch's file, if batches are files."""
        ring = self.ring(stream)
        if isinstance(ring, FileRing):
            ring.free_slot(slot, generation)

    def create_file_ring(self, resources: StreamResources, batch_bytes: int, slot_bytes: int) -> FileRing:
        """Returns a ring for batches that are files already. Raises PrefetchdError."""
        files = self.files[resources.spec.directory]
        ring = self._named(
            lambda name: resources.create_ring(
                name, batch_bytes, slot_bytes, b"", self._generation, self._budget_bytes(), files, self._memory_bytes
            )
        )
        assert isinstance(ring, FileRing)
        return ring

    def drop(self, stream: int) -> None:
        """Unlinks what the stream has; files of batches stay."""
        dropped = self.resources.pop(stream, None)
        if dropped is not None:
            dropped.close()

    # --- from a dead daemon ---

    def adopt(self, ram_disks: Iterable[str] = ()) -> None:
        """Goes on with the streams of a daemon that died on the same socket; their rings are in shared memory, or on
        `ram_disks`."""
        for resources in find_streams(self._paths, self._generation, ram_disks, self._memory_bytes):
            try:
                stream = self._engine.adopt(resources.spec, resources.found(), time.monotonic())
            except Exception:  # what it says must not keep the daemon from starting
                log.exception("ring not adopted", extra={"fields": {"stream": resources.spec.name}})
                resources.close()
                continue
            ring = resources.ring
            if stream is None or ring is None:
                resources.close()
                continue
            self.resources[stream.number] = resources
            kill_point("daemon.adopt.adopted")
            self._loop.in_between(partial(self._prepare, stream.number, resources, ring))

    def look_for_the_dead(self) -> None:
        """Tells the engine of consumers without a connection, and of a dead daemon's writers, that live no longer."""
        for stream in list(self._engine.streams.values()):
            ring = self.ring(stream.number)
            if ring is None:
                continue
            for record in list(stream.absents):
                if not ring.has_living_consumer(record):
                    self._engine.absent_died(stream.number, record, ring.marks(record), time.monotonic())
                elif ring.consumer_record(record).cursor == DEPARTED:
                    self._engine.absent_departed(stream.number, record, ring.marks(record), time.monotonic())
            if stream.former_grants and not ring.has_former_writers():
                self._engine.former_writers_gone(stream.number)

    # --- as the engine asks ---

    def create(self, command: CreateRing) -> None:
        """Makes the stream's ring; the engine is told the result."""
        self._once_buried(partial(self._create, command), time.monotonic() + BURIED_WITHIN_S)

    def grow(self, stream: int, slots: int) -> None:
        """Reserves up to `slots`; the engine is told as they come."""
        self._once_buried(partial(self._grow, stream, slots), time.monotonic() + BURIED_WITHIN_S)

    def growth_room(self, stream: int) -> tuple[int, int]:
        """Returns the bytes that the store of the stream's ring has left, and those that the ring may take more; 0 each
        where nobody can tell."""
        resources = self.resources.get(stream)
        if resources is None:
            return 0, 0
        with contextlib.suppress(OSError):
            return resources.growth_room(self._budget_bytes())
        return 0, 0

    def shrink(self, stream: int, slots: int) -> None:
        """Takes the memory behind the ring's slots from `slots` on, which nobody uses."""
        ring = self.ring(stream)
        if ring is not None:
            ring.shrink(slots, keeps_memory=_is_pinned(ring))

    def is_pinned(self, stream: int) -> bool:
        """Returns True when a device reads the stream's ring: its memory stays, whatever is counted out."""
        ring = self.ring(stream)
        return ring is not None and _is_pinned(ring)

    def _once_buried(self, then: Callable[[], None], until_s: float) -> None:
        """Calls then() once no process of a dropped stream lives, or at `until_s`: a ring that has yielded its memory
        is mapped until its workers are dead."""
        if self._is_burying() and time.monotonic() < until_s:
            self._loop.call_later(BURIED_LOOK_AGAIN_S, partial(self._once_buried, then, until_s))
        else:
            then()

    def _create(self, command: CreateRing) -> None:
        stream, resources = command.stream, self.resources.get(command.stream)
        if resources is None:
            return
        try:
            ring = self._named(
                lambda name: resources.create_ring(
                    name,
                    command.batch_bytes,
                    command.slot_bytes,
                    command.layout,
                    self._generation,
                    self._budget_bytes(),
                    self.files.get(resources.spec.directory) if resources.spec.store == FILES else None,
                    self._memory_bytes,
                )
            )
        except PrefetchdError as error:
            self._engine.ring_failed(stream, error.code, str(error), getattr(error, "short_bytes", 0))
            return
        except OSError as error:
            self._engine.ring_failed(stream, NoSpaceError.code, f"no ring can be made: {why(error)}")
            return
        header = ring.header
        self._engine.ring_created(
            stream, header.slots, ring.wanted_slots, header.slot_bytes, header.created_ns, resources.bounds
        )
        # In steps between events: for a large ring the kernel takes seconds to find and clear the memory.
        self._loop.in_between(lambda: self._prepare(stream, resources, ring))

    def _named(self, make: Callable[[str], RingSegment]) -> RingSegment:
        """Returns the ring that make() makes with a name that nobody has. Raises PrefetchdError."""
        try:
            return make_named((self._names.next_ring() for _ in range(ATTEMPTS)), make)[1]
        except FileExistsError as error:
            raise NoSpaceError(f"no ring can be made: {error.strerror or error}") from None

    def _grow(self, stream: int, slots: int) -> None:
        resources = self.resources.get(stream)
        ring = resources.ring if resources is not None else None
        if resources is None or ring is None:
            return
        try:
            resources.grow_ring(slots, self._budget_bytes())
        except NoSpaceError as error:
            self._engine.ring_short(stream, slots, ring.wanted_slots, str(error), error.short_bytes)
            return
        except OSError as error:
            self._engine.ring_short(stream, slots, ring.wanted_slots, f"it cannot grow: {why(error)}", 0)
            return
        self._loop.in_between(lambda: self._prepare(stream, resources, ring))

    def _prepare(self, stream: int, resources: StreamResources, ring: RingSegment) -> bool:
        """Does one step of reserving; True when nothing is left to do. Then prefaulting begins."""
        if resources.ring is not ring or not ring.is_whole:
            return True
        if ring.is_reserved:
            self.prefault(stream, ring)
            return True
        try:
            slots = resources.reserve_step()
        except NoSpaceError as error:
            asked = ring.wanted_slots
            ring.stay()
            self._engine.ring_short(stream, asked, ring.wanted_slots, str(error), error.short_bytes)
            return False
        self._engine.ring_reserved(stream, slots)
        return False

    def prefault(self, stream: int, ring: RingSegment) -> None:
        """Makes resident what the ring needs next, between events. To be called when that may have become more."""
        if ring.is_prefault_due and stream not in self._prefaulting:
            self._prefaulting.add(stream)
            self._loop.in_between(lambda: self._prefault_step(stream, ring))

    def _prefault_step(self, stream: int, ring: RingSegment) -> bool:
        is_over = self.ring(stream) is not ring or ring.prefault_step()
        if is_over:
            self._prefaulting.discard(stream)
        return is_over

    def _budget_bytes(self) -> int | None:
        if self._memory_bytes is None:
            return None
        rings = [each.ring.wanted_bytes for each in self.resources.values() if each.ring is not None]
        return max(0, self._memory_bytes - sum(rings))


def _is_pinned(ring: RingSegment) -> bool:
    """True when a device may read the ring's memory where it lies now: other memory in its place would not be seen. A
    consumer says so before it pins anything, and pins only what it is leased."""
    memory = memoryview(ring.memory.memory)
    consumers = (each for each in range(ring.header.consumers) if ring.has_living_consumer(each))
    return any(
        decode_memory_mode(memory, ring.header.consumer_record_offset(each)) != MEMORY_MODES[0] for each in consumers
    )
