"""Takes the snapshot: what the daemon says of itself at one instant, as plain data."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.daemon.engine.stream.stream_state import StreamState, Worker
from prefetchd.daemon.segments.resources import StreamResources
from prefetchd.daemon.telemetry.remote_snapshot import remote_snapshot
from prefetchd.daemon.telemetry.stats_sampler import StatsSampler, ready_slots
from prefetchd.ring.policy import SlotState
from prefetchd.supervisor.backend import Backend
from prefetchd.wire.process_stat import process_stat
from prefetchd.wire.status_layout import SNAPSHOT_VERSION
from prefetchd.wire.worker_status import PHASES, WorkerStatus

MOST_BAD_SHOWN = 8


class Birth:
    """Remembers when this daemon began. The wall clock is for people alone: it may be set meanwhile."""

    def __init__(self) -> None:
        self._unix_s = time.time()
        self._monotonic_s = time.monotonic()
        stat = process_stat(os.getpid())
        self._ticks = stat.start_ticks if stat is not None else 0

    def about(self) -> dict[str, Any]:
        up_s = time.monotonic() - self._monotonic_s
        return {"started_unix_s": self._unix_s, "up_s": up_s, "start_ticks": self._ticks}


def snapshot(
    engine: Engine,
    resources: Mapping[int, StreamResources],
    backend: Backend,
    stats: StatsSampler,
    about: dict[str, Any],
    cpus: int,
) -> dict[str, Any]:
    """Returns the daemon's state at this instant. Field names carry their units."""
    return {
        "snapshot_version": SNAPSHOT_VERSION,
        "taken_unix_s": time.time(),
        "daemon": about,
        "workers": {
            "limit": engine.pool.limit,
            "asked": engine.limits.workers,
            "running": len(engine.pool.workers),
            "busy": sum(worker.busy for worker in engine.pool.workers.values()),
            "cpus": cpus,
        },
        "load": stats.load(),
        "streams": [
            _stream(each, resources.get(each.number), backend, stats, engine.pool.worker_limit(each), engine.now_s)
            for each in engine.streams.values()
        ],
    }


def _stream(
    stream: StreamState,
    resources: StreamResources | None,
    backend: Backend,
    stats: StatsSampler,
    workers: int,
    now_s: float,
) -> dict[str, Any]:
    spec, counters, history = stream.spec, stream.counters, stats.history(stream.number)
    notes = {
        worker.number: backend.note(worker.number)
        for worker in stream.workers.values()
        if worker.stage is not WorkerStage.STOPPING
    }
    return {
        "name": stream.name,
        "stage": stream.stage.value,
        "failure": stream.failure[1] if stream.failure is not None else None,
        "fingerprint": spec.fingerprint,
        "seed": spec.seed,
        "seed_source": spec.seed_source,
        "samples": spec.length,
        "batch_size": spec.batch_size,
        "steps": stream.schedule.steps if spec.is_arithmetic else spec.epoch_steps,
        "order": spec.order,
        "store": spec.store,
        "rank": spec.rank,
        "world_size": spec.world_size,
        "by_rows": bool(stream.layout),
        "one_by_one": stream.one_by_one,
        "paused": stream.paused,
        "not_ahead": stream.window.why_not_ahead,
        "lingering": stream.lingers_until_s is not None,
        "lingers_s": max(0.0, stream.lingers_until_s - now_s) if stream.lingers_until_s is not None else None,
        "ring": _ring(stream, resources),
        "consumers": _consumers(stream, stats),
        "absent_consumers": sorted(each.pid for each in stream.absents.values() if not each.departed),
        "workers_limit": workers,
        "workers_asked": spec.workers,
        "workers": [
            _worker(worker, notes[worker.number], backend, stats)
            for worker in stream.workers.values()
            if worker.number in notes
        ],
        "recent": (history.recent() or None) if history is not None else None,
        "paces": history.paces() if history is not None else [],
        "ready_percents": history.ready_percents() if history is not None else [],
        "produced_batches": counters.batches,
        "produced_samples": counters.samples,
        "produced_bytes": counters.payload_bytes,
        "consumed_batches": counters.consumed,
        "stalled_s": counters.waited_us / 1e6,
        "tasks": counters.tasks,
        "fill_s": counters.fill_us / 1e6,
        "failed_batches": counters.failed,
        "deviating_batches": counters.deviations,
        "worker_deaths": counters.worker_deaths,
        "zygote": "none" if stream.host is None else "fork" if stream.host.is_fork else "executed",
        "program_kept": stream.has_program,
        "carried_by_fork": "" if stream.has_program else stream.unpicklable,
        "zygote_deaths": counters.zygote_deaths,
        "retries": counters.retries,
        "bad_samples": counters.bad_samples,
        "bad_samples_named": [text.decode("utf-8", "replace") for _, text in stream.bad_named[-MOST_BAD_SHOWN:]],
        "cache_damaged": any(note.damage for note in notes.values()),
        "output_lines_left_out": counters.lines_left_out,
        "remote": remote_snapshot(stream.remote),
        "replanned_batches": stream.claims.dropped_for_plan,
        "slowest_samples": stats.slowest_samples(stream.number, time.monotonic()),
    }


def _worker(worker: Worker, note: WorkerStatus, backend: Backend, stats: StatsSampler) -> dict[str, Any]:
    return {
        "number": worker.number,
        "pid": backend.pid(worker.number),
        "stage": worker.stage.value,
        "busy": worker.busy,
        "busy_share": stats.busy_share(worker.number),
        "phase": PHASES[note.phase],
        "index": note.index,
        "phase_s": max(0.0, time.monotonic() - note.since_ns / 1e9) if note.since_ns else 0.0,
    }


def _ring(stream: StreamState, resources: StreamResources | None) -> dict[str, Any] | None:
    ring = stream.window.ring
    if ring is None or resources is None or resources.ring is None:
        return None
    header = resources.ring.header
    return {
        "segment": resources.ring.name,
        "directory": resources.ring.directory,
        "name_removed": not resources.ring.is_named,
        "segment_bytes": header.bytes_with(ring.reserved),
        "slots": ring.reserved,
        "slot_bytes": header.slot_bytes,
        "free": ring.count(SlotState.FREE),
        "filling": ring.count(SlotState.FILLING),
        "ready": ready_slots(stream, ring),
        "leased": stream.leases.slots_given_out(),
        "behind": stream.window.lookback.slots,
        "slots_a_batch": ring.mean_span,
        "quarantined": ring.count(SlotState.QUARANTINED),
    }


def _consumers(stream: StreamState, stats: StatsSampler) -> list[dict[str, Any]]:
    found = []
    for consumer in stream.consumers.values():
        # The keeper is the daemon itself.
        if consumer.session == stream.keeper:
            continue
        about: dict[str, Any] = {"pid": consumer.pid, "departed": consumer.departed}
        record = stats.record(stream, consumer.record)
        if record is not None:
            about |= {
                "epoch": record.epoch,
                "step": record.step,
                "yielded": record.yielded,
                "waited_s": record.waited_us / 1e6,
                "longest_wait_s": record.longest_wait_us / 1e6,
                "waiting_s": stats.waiting_s(stream, consumer.session, record, time.monotonic()),
                "private_copies": record.private_copies,
                "held": record.held,
                "memory": stats.memory(stream, consumer.record),
            }
        found.append(about)
    return found
