"""Lets the daemon find out how deep rings are to be: looks at each, asks its tuner, and tells the engine."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.segments.planned_ring import epoch_steps
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.telemetry.stats_sampler import StatsSampler
from prefetchd.ring.capacity import DEFAULT_EPOCHS
from prefetchd.ring.memory_limits import left_bytes
from prefetchd.ring.policy import Ring
from prefetchd.tuning.ring_memory import Free, who_gives
from prefetchd.tuning.ring_tuner import RingChange, RingLook, RingTuner

MEMORY_EVERY_S = 5.0


class RingAutotune:
    """Tunes the rings of one daemon whose size nobody has said. `note` is told of each change."""

    def __init__(
        self,
        engine: Engine,
        stats: StatsSampler,
        rings: StreamRings,
        note: Callable[[StreamState, RingChange, float], None],
    ) -> None:
        self._engine = engine
        self._stats = stats
        self._rings = rings
        self._note = note
        self._tuners: dict[int, RingTuner] = {}
        self._first_bytes = self._free_bytes = left_bytes()
        self._first_store_bytes: dict[str, int] = {}
        self._looked_s = 0.0

    def look(self, now_s: float) -> None:
        """Looks at all streams, and changes what is to be changed. To be called several times a second, after the
        sampler has observed them."""
        tuned = {each.number: each for each in self._engine.streams.values() if self._engine.is_ring_tuned(each)}
        self._tuners = {number: self._tuners.get(number) or RingTuner() for number in tuned}
        if not tuned:
            return
        if now_s - self._looked_s >= MEMORY_EVERY_S:
            self._looked_s = now_s
            # Without a descriptor left nobody can look.
            with contextlib.suppress(OSError):
                self._free_bytes = left_bytes()
            missing_bytes = Free(self._free_bytes, self._first_bytes).missing_bytes
            if missing_bytes:
                self._take_spare(missing_bytes, f"{self._free_bytes >> 20} MiB of memory are free", now_s)
        for stream in tuned.values():
            self._tune(stream, now_s)

    def _tune(self, stream: StreamState, now_s: float) -> None:
        history, ring = self._stats.history(stream.number), stream.window.ring
        # One that grows or shrinks is not what it will be.
        if history is None or ring is None or stream.paused or ring.reserved != stream.wanted_slots:
            return
        tuner = self._tuners[stream.number]
        latest, depth = history.latest, ring.capacity
        look = RingLook(history.sums(), latest.workers, depth, latest.ready_share * depth, latest.longest_task_s)
        change = tuner.observe(
            look, lambda: self._most_batches(stream, ring), now_s, lambda: self._least_batches(stream, ring)
        )
        if change is not None:
            self._execute(stream, ring, change, now_s)
        if tuner.short_batches:
            # What lies further ahead than it may ever have is not missed.
            short = max(0, min(tuner.short_batches, self._useful_batches(stream, ring) - depth))
            short_bytes = math.ceil(short * ring.mean_span) * stream.slot_bytes
            self._take_spare(short_bytes, f"stream {stream.name!r} needs it", now_s, beside=stream.number)

    def _most_batches(self, stream: StreamState, ring: Ring) -> int:
        """Returns how many batches the stream's ring may hold now."""
        room_slots = self._room_bytes(stream) // stream.slot_bytes
        return min(int((ring.reserved + room_slots) / ring.mean_span), self._useful_batches(stream, ring))

    @staticmethod
    def _useful_batches(stream: StreamState, ring: Ring) -> int:
        """Returns how many batches the ring may ever hold, without what is work for nothing as soon as the run ends."""
        most = int(stream.bounds.most / ring.mean_span)
        steps = epoch_steps(stream.spec)
        return most if steps is None else min(most, DEFAULT_EPOCHS * steps)

    def _execute(self, stream: StreamState, ring: Ring, change: RingChange, now_s: float) -> None:
        self._note(stream, change, now_s)
        slots = math.ceil(change.batches * ring.mean_span)
        self._free_bytes -= max(0, slots - ring.reserved) * stream.slot_bytes
        self._engine.resize_ring(stream.number, slots)

    def _room_bytes(self, stream: StreamState) -> int:
        """Returns what the stream's ring may take more by itself."""
        store_bytes, growth_bytes = self._rings.growth_room(stream.number)
        first_bytes = self._first_store_bytes.setdefault(stream.spec.directory, store_bytes)
        return min(
            Free(store_bytes, first_bytes).to_grow_bytes,
            Free(self._free_bytes, self._first_bytes).to_grow_bytes,
            growth_bytes,
        )

    def _take_spare(self, missing_bytes: int, why: str, now_s: float, *, beside: int = 0) -> None:
        """Has rings give up what they have to spare, but for that of the stream `beside`."""
        spare = {}
        for number, tuner in self._tuners.items():
            stream = self._engine.streams[number]
            ring = stream.window.ring
            if number == beside or ring is None or ring.reserved != stream.wanted_slots:
                continue
            batches = min(tuner.spare_batches, ring.capacity - self._least_batches(stream, ring))
            spare[number] = int(max(0, batches) * ring.mean_span) * stream.slot_bytes
        for number, given_bytes in who_gives(missing_bytes, spare).items():
            stream, ring = self._engine.streams[number], self._engine.streams[number].window.ring
            assert ring is not None
            batches = math.ceil(given_bytes / stream.slot_bytes / ring.mean_span)
            self._execute(stream, ring, self._tuners[number].give_up(batches, why), now_s)

    def _least_batches(self, stream: StreamState, ring: Ring) -> int:
        """Returns how many batches the ring must go on to hold."""
        # What lies behind the consumers is wanted, though nobody waits for it; pinned memory would stay where it is.
        if stream.window.lookback.limit(ring) or self._rings.is_pinned(stream.number):
            return ring.capacity
        return math.ceil(max(stream.spec.minimum_slots, stream.claims.widest) / ring.mean_span)
