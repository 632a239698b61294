"""Looks at streams and workers several times a second, and keeps their last minute for status and metrics."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.history import KEPT_SAMPLES, Counts, History
from prefetchd.daemon.engine.stream.consumers import Consumer
from prefetchd.daemon.engine.stream.stream_state import StreamState, Worker
from prefetchd.daemon.segments.resources import StreamResources
from prefetchd.daemon.telemetry.cpu_times import cpu_times_s
from prefetchd.ring.policy import Ring, SlotState
from prefetchd.supervisor.backend import Backend
from prefetchd.wire.segment_layout import (
    MEMORY_MODES,
    WAIT_BOUNDS_US,
    ConsumerRecord,
    decode_consumer_record,
    decode_memory_mode,
    decode_wait_counts,
)

CPU_EVERY_S = 1.0
_NO_WAITS = [0] * (len(WAIT_BOUNDS_US) + 1)


class StatsSampler:
    """Keeps the last minute of each stream and worker. It only reads."""

    def __init__(self, engine: Engine, resources: Mapping[int, StreamResources], backend: Backend) -> None:
        self._engine = engine
        self._resources = resources
        self._backend = backend
        self._histories: dict[int, History] = {}
        self._busy: dict[int, deque[tuple[float, float]]] = {}
        self._cpu: dict[int, tuple[float, float]] = {}
        self._cpu_at_s = 0.0
        self._waits: dict[int, list[int]] = {}
        self._waits_told: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def observe(self, now_s: float) -> None:
        """Takes a sample. To be called several times a second, at moments that do not keep step with anything."""
        streams, workers = self._engine.streams, self._engine.pool.workers
        if now_s - self._cpu_at_s >= CPU_EVERY_S:
            self._cpu_at_s = now_s
            self._look_at_workers(now_s)
        for gone in [number for number in self._histories if number not in streams]:
            del self._histories[gone]
            self._waits.pop(gone, None)
            self._waits_told = {key: counts for key, counts in self._waits_told.items() if key[0] != gone}
        for gone in [number for number in self._busy if number not in workers]:
            del self._busy[gone]
            self._cpu.pop(gone, None)
        for stream in streams.values():
            self._histories.setdefault(stream.number, History()).observe(self._counts(stream, now_s), now_s)

    def history(self, stream: int) -> History | None:
        return self._histories.get(stream)

    def wait_counts(self, stream: int) -> list[int]:
        """Returns how many calls of next() have waited how long, by WAIT_BOUNDS_US, of all consumers that there
        were."""
        return self._waits.get(stream, _NO_WAITS)

    def busy_share(self, worker: int) -> float | None:
        """Returns how much of the last minute the worker had tasks; None until that is known."""
        seen = self._busy.get(worker)
        if seen is None or len(seen) < 2:
            return None
        (begin_s, before_s), (end_s, after_s) = seen[0], seen[-1]
        return min(1.0, max(0.0, (after_s - before_s) / (end_s - begin_s)))

    def record(self, stream: StreamState, number: int) -> ConsumerRecord | None:
        """Returns what the consumer in that record says of itself, or None without a ring."""
        resources = self._resources.get(stream.number)
        ring = resources.ring if resources is not None else None
        if ring is None:
            return None
        return decode_consumer_record(memoryview(ring.memory.memory), ring.header.consumer_record_offset(number))

    def memory(self, stream: StreamState, number: int) -> str:
        """Returns what memory the batches of the consumer in that record come out of, one of MEMORY_MODES."""
        resources = self._resources.get(stream.number)
        ring = resources.ring if resources is not None else None
        if ring is None:
            return MEMORY_MODES[0]
        return decode_memory_mode(memoryview(ring.memory.memory), ring.header.consumer_record_offset(number))

    def _count_waits(self, stream: StreamState, consumer: Consumer) -> None:
        resources = self._resources[stream.number]
        assert resources.ring is not None
        offset = resources.ring.header.consumer_record_offset(consumer.record)
        counts = decode_wait_counts(memoryview(resources.ring.memory.memory), offset)
        key = (stream.number, consumer.record, consumer.pid)
        before = self._waits_told.get(key, _NO_WAITS)
        self._waits_told[key] = counts
        total = self._waits.setdefault(stream.number, list(_NO_WAITS))
        for place, (now, then) in enumerate(zip(counts, before)):
            total[place] += max(0, now - then)

    def waiting_s(self, stream: StreamState, session: int, record: ConsumerRecord, now_s: float) -> float:
        """Returns for how long next() of that consumer waits by now; 0 when it does not."""
        for key, cursor in stream.window.cursors.items():
            if cursor.consumer != session or not cursor.blocked:
                continue
            since_s = self._engine.waits.since_s(stream, key)  # type: ignore[arg-type]
            # Progress is told now and then: by its record the consumer may have got what the engine takes it to wait
            # for.
            stands_at = stream.window.lengths.skip_voids((record.epoch, record.step))
            went_on = record.cursor == key[1] and stands_at != cursor.next  # type: ignore[index]
            if since_s is not None and not went_on:
                return max(0.0, now_s - since_s)
        return 0.0

    def _counts(self, stream: StreamState, now_s: float) -> Counts:
        counters, ring = stream.counters, stream.window.ring
        # Tasks under way count as far as they have come: a long one would else show in the second of its end alone.
        under_way_s = [now_s - each.head_since_s for each in stream.workers.values() if each.busy]
        consumers = []
        for consumer in stream.consumers.values():
            record = self.record(stream, consumer.record) if not consumer.departed else None
            if record is not None and record.yielded:
                self._count_waits(stream, consumer)
                waited_s = record.waited_us / 1e6 + self.waiting_s(stream, consumer.session, record, now_s)
                consumers.append((consumer.session, waited_s))
        cpu = [self._cpu[number] for number in stream.workers if number in self._cpu]
        ready = ready_slots(stream, ring) if ring is not None else 0
        return Counts(
            counters.batches,
            counters.samples,
            counters.consumed,
            counters.fill_us / 1e6 + sum(under_way_s),
            sum(each for each, _ in cpu),
            sum(each for _, each in cpu),
            ready / ring.reserved if ring is not None and ring.reserved else 0.0,
            ring is not None and ready > 0 and _is_full(stream, ring),
            tuple(consumers),
            max([counters.take_longest_task_us() / 1e6, *under_way_s]),
        )

    def _look_at_workers(self, now_s: float) -> None:
        for worker in self._engine.pool.workers.values():
            seen = self._busy.setdefault(worker.number, deque(maxlen=KEPT_SAMPLES + 1))
            seen.append((now_s, _busy_s(worker, now_s)))
            pid = self._backend.pid(worker.number)
            times_s = cpu_times_s(pid) if pid else None
            if times_s is not None:
                self._cpu[worker.number] = times_s


def ready_slots(stream: StreamState, ring: Ring) -> int:
    """Counts the slots of batches that are made, and that next() has not given out."""
    made = ring.count(SlotState.READY) + ring.count(SlotState.LEASED)
    return made - stream.leases.slots_given_out() - stream.window.lookback.slots


def _is_full(stream: StreamState, ring: Ring) -> bool:
    return ring.count(SlotState.FREE) < ring.mean_span or not stream.claims.has_work()


def _busy_s(worker: Worker, now_s: float) -> float:
    return worker.fill_us / 1e6 + (now_s - worker.head_since_s if worker.busy else 0.0)
