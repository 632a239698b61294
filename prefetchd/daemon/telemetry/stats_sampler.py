"""Looks at streams and workers several times a second, and keeps their last minute for status and metrics."""

from __future__ import annotations

import dataclasses
import os
from collections import defaultdict, deque
from collections.abc import Mapping
from typing import Any

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.history import KEPT_SAMPLES, Counts, History
from prefetchd.daemon.engine.stream.consumers import Consumer
from prefetchd.daemon.engine.stream.keeping import FOLLOWER
from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.daemon.engine.stream.stream_state import StreamState, Worker
from prefetchd.daemon.segments.resources import StreamResources
from prefetchd.daemon.telemetry.cpu_load import CpuLoad
from prefetchd.daemon.telemetry.cpu_times import WAITS_FOR_DISK, CpuTimes, cpu_times
from prefetchd.daemon.telemetry.slowest_samples import SlowestSamples
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
from prefetchd.wire.worker_status import COLLATING, IMPORTING, STARTING

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
        self._cpu: dict[int, CpuTimes] = {}
        # By stream: what its workers have had, those that have ended too; and how long they were looked at by now.
        self._cpu_sums: defaultdict[int, _CpuSums] = defaultdict(_CpuSums)
        self._looked_s = 0.0
        self._cpu_at_s = self._observed_s = 0.0
        self._load = CpuLoad()
        # Of each stream by its number: what its workers have spent in collate_fn and waiting for a disk, and for how
        # long who is followed by a progress file has stood at a batch that was not ready.
        self._collating_s: defaultdict[int, float] = defaultdict(float)
        self._disk_s: defaultdict[int, float] = defaultdict(float)
        self._late_s: defaultdict[int, float] = defaultdict(float)
        self._slowest: defaultdict[int, SlowestSamples] = defaultdict(SlowestSamples)
        self._waits: dict[int, list[int]] = {}
        self._last_waits: dict[tuple[int, int, int], tuple[int, ...]] = {}

    def observe(self, now_s: float) -> None:
        """Takes a sample. To be called several times a second, at moments that do not keep step with anything."""
        streams, workers = self._engine.streams, self._engine.pool.workers
        since_s = now_s - self._observed_s if self._observed_s else 0.0
        self._observed_s = now_s
        if now_s - self._cpu_at_s >= CPU_EVERY_S:
            since_look_s = now_s - self._cpu_at_s if self._cpu_at_s else 0.0
            self._cpu_at_s = now_s
            self._look_at_workers(now_s, since_look_s)
        # Seen, not measured: a clock in the workers would cost each sample (decision 0110).
        for worker in workers.values():
            if not worker.busy:
                continue
            note = self._backend.note(worker.number)
            if note.phase == COLLATING:
                self._collating_s[worker.stream.number] += since_s
            self._slowest[worker.stream.number].see(worker.number, note, now_s)
        for stream in streams.values():
            if _is_late(stream):
                self._late_s[stream.number] += since_s
        for gone in [number for number in self._histories if number not in streams]:
            del self._histories[gone]
            self._waits.pop(gone, None)
            self._cpu_sums.pop(gone, None)
            self._slowest.pop(gone, None)
            for sums in (self._collating_s, self._disk_s, self._late_s):
                sums.pop(gone, None)
            self._last_waits = {key: counts for key, counts in self._last_waits.items() if key[0] != gone}
        for gone in [number for number in self._busy if number not in workers]:
            del self._busy[gone]
            self._cpu.pop(gone, None)
        # Last: the counts have what was seen above.
        for stream in streams.values():
            self._histories.setdefault(stream.number, History()).observe(self._counts(stream, now_s), now_s)

    def load(self) -> dict[str, float] | None:
        """Returns who has used the CPUs in the last seconds, as CpuLoad.about() does."""
        return self._load.about()

    @property
    def looked_s(self) -> float:
        """How long workers' CPU times were looked at by now: it grows once a second."""
        return self._looked_s

    def slowest_samples(self, stream: int, now_s: float) -> list[dict[str, Any]]:
        """Return the slowest samples of the last hour, as docs/status.md describes them."""
        found = self._slowest.get(stream)
        return found.about(now_s) if found is not None else []

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
        before = self._last_waits.get(key, _NO_WAITS)
        self._last_waits[key] = counts
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
        if _is_followed(stream):
            assert stream.keeper is not None
            consumers.append((stream.keeper, self._late_s[stream.number]))
        cpu = self._cpu_sums[stream.number]
        ready = ready_slots(stream, ring) if ring is not None else 0
        return Counts(
            counters.batches,
            counters.samples,
            counters.consumed,
            counters.fill_us / 1e6 + sum(under_way_s),
            cpu.ran_s,
            cpu.waited_s,
            cpu.process_s,
            self._collating_s[stream.number],
            self._disk_s[stream.number],
            ready / ring.reserved if ring is not None and ring.reserved else 0.0,
            ring is not None and ready > 0 and _is_full(stream, ring),
            self._is_starting(stream),
            self._engine.pool.worker_limit(stream),
            sum(each.busy for each in stream.workers.values()),
            tuple(consumers),
            max([counters.take_longest_task_us() / 1e6, *under_way_s]),
            self._looked_s,
            counters.elsewhere,
        )

    def _is_starting(self, stream: StreamState) -> bool:
        """True while there is something to fill and no worker that has begun: they import, or are not there yet."""
        if stream.failure is not None or stream.paused or not stream.claims.has_work():
            return False
        return all(
            each.stage is WorkerStage.STARTING or self._backend.note(each.number).phase in (STARTING, IMPORTING)
            for each in stream.workers.values()
        )

    def _look_at_workers(self, now_s: float, since_s: float) -> None:
        own = {os.getpid()}
        self._looked_s += since_s
        for worker in self._engine.pool.workers.values():
            seen = self._busy.setdefault(worker.number, deque(maxlen=KEPT_SAMPLES + 1))
            seen.append((now_s, _busy_s(worker, now_s)))
            pid = self._backend.pid(worker.number)
            own.add(pid)
            times = cpu_times(pid) if pid else None
            if times is not None:
                self._cpu_sums[worker.stream.number].add(times, self._cpu.get(worker.number))
                self._cpu[worker.number] = times
                if worker.busy and times.state == WAITS_FOR_DISK:
                    self._disk_s[worker.stream.number] += since_s
        trainers = {each.pid for stream in self._engine.streams.values() for each in stream.consumers.values()}
        self._load.observe(now_s, own, trainers)


@dataclasses.dataclass
class _CpuSums:
    """What workers have had of the CPUs, as in CpuTimes. It only grows: what one had stays when it ends."""

    ran_s: float = 0.0
    waited_s: float = 0.0
    process_s: float = 0.0

    def add(self, now: CpuTimes, before: CpuTimes | None) -> None:
        """Adds what one worker has had since it was looked at last."""
        self.ran_s += now.ran_s - (before.ran_s if before is not None else 0.0)
        self.waited_s += now.waited_s - (before.waited_s if before is not None else 0.0)
        self.process_s += now.process_s - (before.process_s if before is not None else 0.0)


def ready_slots(stream: StreamState, ring: Ring) -> int:
    """Counts the slots of batches that are made, and that next() has not given out."""
    made = ring.count(SlotState.READY) + ring.count(SlotState.LEASED)
    return made - stream.leases.slots_given_out() - stream.window.lookback.slots


def _is_followed(stream: StreamState) -> bool:
    """True when a progress file has told that the stream's consumer goes on."""
    return stream.keeper is not None and stream.follows_progress and stream.counters.consumed > 0


def _is_late(stream: StreamState) -> bool:
    """True while the batch where the progress file says that the consumer stands is not ready: it waits for it, or will
    when it has done with the one before."""
    if not _is_followed(stream) or stream.paused:
        return False
    cursor = stream.window.cursors.get((stream.keeper, FOLLOWER))
    if cursor is None or stream.window.lengths.steps(cursor.next[0]) == 0:
        # The plan has ended: it waits for nothing.
        return False
    batch = stream.window.batches.get(cursor.next)
    return batch is None or not batch.done


def _is_full(stream: StreamState, ring: Ring) -> bool:
    return ring.claimable < ring.mean_span or not stream.claims.has_work()


def _busy_s(worker: Worker, now_s: float) -> float:
    return worker.fill_us / 1e6 + (now_s - worker.head_since_s if worker.busy else 0.0)
