"""Exports the daemon's counts in Prometheus' text format. Needs prometheus_client: imported only where that is
wanted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.telemetry.diagnosis_metrics import diagnosis_metrics
from prefetchd.daemon.telemetry.remote_snapshot import remote_metrics
from prefetchd.daemon.telemetry.stats_sampler import StatsSampler, ready_slots
from prefetchd.ring.policy import SlotState
from prefetchd.wire.durations import BOUNDS_S, Durations
from prefetchd.wire.printable import one_line
from prefetchd.wire.segment_layout import WAIT_BOUNDS_US

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# Name less "_total", what it counts, and where that is in a stream's counters.
COUNTERS = (
    ("prefetchd_batches_produced", "Batches made, errors not counted", "batches"),
    ("prefetchd_samples_produced", "Samples in finished fill tasks", "samples"),
    ("prefetchd_produced_bytes", "Payloads of the batches made", "payload_bytes"),
    ("prefetchd_batches_consumed", "Batches that next() gave out, errors included", "consumed"),
    ("prefetchd_batches_failed", "Batches that could not be made", "failed"),
    ("prefetchd_deviating_batches", "Batches made whole as a row did not fit", "deviations"),
    ("prefetchd_fill_tasks", "Finished fill tasks", "tasks"),
    ("prefetchd_retries", "Fill tasks that a worker's death cut short", "retries"),
    ("prefetchd_bad_samples", "Samples left out or replaced", "bad_samples"),
    ("prefetchd_worker_deaths", "Workers that died without being told to", "worker_deaths"),
    ("prefetchd_zygote_deaths", "Zygotes that died", "zygote_deaths"),
    ("prefetchd_output_lines_left_out", "Lines that workers printed too fast", "lines_left_out"),
)


class EngineMetrics(Collector):
    """Collects from the engine at the moment of the scrape."""

    def __init__(self, engine: Engine, stats: StatsSampler, snapshot: Callable[[], dict[str, Any]]) -> None:
        """`snapshot` takes one of the daemon, with what is declared in it."""
        self._engine = engine
        self._stats = stats
        self._take_snapshot = snapshot
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def text(self) -> bytes:
        """Returns all metrics, as text."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        snapshot = self._take_snapshot()
        yield from self._of_the_daemon(snapshot)
        yield from diagnosis_metrics(snapshot)
        streams = list(self._engine.streams.values())
        for name, about, key in COUNTERS:
            family = CounterMetricFamily(name, about, labels=["stream"])
            for stream in streams:
                family.add_metric([one_line(stream.name)], getattr(stream.counters, key))
            yield family
        stalled = CounterMetricFamily("prefetchd_stalled_seconds", "Time that next() waited", labels=["stream"])
        for stream in streams:
            stalled.add_metric([one_line(stream.name)], stream.counters.waited_us / 1e6)
        yield stalled
        yield from self._of_rings(streams)
        yield from remote_metrics(streams)
        yield self._histogram("prefetchd_next_wait_seconds", "What calls of next() waited", streams, self._waits)
        yield self._histogram("prefetchd_fill_task_seconds", "What fill tasks took", streams, _task_durations)
        yield self._histogram(
            "prefetchd_sample_seconds",
            "What the dataset took for a sample",
            streams,
            _sample_durations,
        )

    def _of_the_daemon(self, snapshot: dict[str, Any]) -> Iterator[Metric]:
        pool, about = self._engine.pool, snapshot["daemon"]
        version = {"version": about["software"], "protocol": str(about["protocol"])}
        yield InfoMetricFamily("prefetchd", "The daemon", value=version)
        yield _gauge("prefetchd_start_time_seconds", "When the daemon started, since 1970", about["started_unix_s"])
        yield _gauge("prefetchd_streams", "Streams, lingering ones included", len(self._engine.streams))
        yield _gauge("prefetchd_workers_running", "Worker processes", len(pool.workers))
        yield _gauge(
            "prefetchd_workers_busy", "Workers that have tasks", sum(each.busy for each in pool.workers.values())
        )
        yield _gauge("prefetchd_workers_limit", "Most workers that may be busy at once", pool.limit)
        yield _gauge("prefetchd_cpus", "CPUs that workers may use", snapshot["workers"]["cpus"])

    def _of_rings(self, streams: Sequence[StreamState]) -> Iterator[Metric]:
        slots = GaugeMetricFamily("prefetchd_ring_slots", "Slots by state", labels=["stream", "state"])
        size = GaugeMetricFamily("prefetchd_ring_bytes", "Reserved for slots", labels=["stream"])
        consumers = GaugeMetricFamily("prefetchd_consumers", "Trainers on the stream", labels=["stream"])
        for stream in streams:
            # The keeper is the daemon itself.
            trainers = (each for each in stream.consumers.values() if each.session != stream.keeper)
            consumers.add_metric([one_line(stream.name)], sum(not each.departed for each in trainers))
            ring = stream.window.ring
            if ring is None:
                continue
            size.add_metric([one_line(stream.name)], ring.reserved * stream.slot_bytes)
            for state, count in (
                ("ready", ready_slots(stream, ring)),
                ("leased", stream.leases.slots_given_out()),
                ("behind", stream.window.lookback.slots),
                ("filling", ring.count(SlotState.FILLING)),
                ("free", ring.count(SlotState.FREE)),
                ("quarantined", ring.count(SlotState.QUARANTINED)),
            ):
                slots.add_metric([one_line(stream.name), state], count)
        yield from (slots, size, consumers)

    def _waits(self, stream: StreamState) -> tuple[Sequence[float], Sequence[int], float]:
        counts = self._stats.wait_counts(stream.number)
        return [bound / 1e6 for bound in WAIT_BOUNDS_US], counts, stream.counters.waited_us / 1e6

    @staticmethod
    def _histogram(name: str, about: str, streams: Sequence[StreamState], found: Any) -> Metric:
        family = HistogramMetricFamily(name, about, labels=["stream"])
        for stream in streams:
            bounds_s, counts, sum_s = found(stream)
            so_far, buckets = 0, []
            for bound, count in zip([*(f"{each:g}" for each in bounds_s), "+Inf"], counts):
                so_far += count
                buckets.append((bound, so_far))
            family.add_metric([one_line(stream.name)], buckets=buckets, sum_value=sum_s)
        return family


def _gauge(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(name, about, value=value)


def _of(durations: Durations) -> tuple[Sequence[float], Sequence[int], float]:
    return BOUNDS_S, durations.counts, durations.total_us / 1e6


def _task_durations(stream: StreamState) -> tuple[Sequence[float], Sequence[int], float]:
    return _of(stream.counters.task_durations)


def _sample_durations(stream: StreamState) -> tuple[Sequence[float], Sequence[int], float]:
    return _of(stream.counters.sample_durations)
