"""Exports what a snapshot means, as `prefetchd status` shows it: health, verdicts, runways, progress. Needs
prometheus_client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from prefetchd.diagnosis.health import problems
from prefetchd.diagnosis.judged import judged_streams
from prefetchd.diagnosis.verdict import LIMITS
from prefetchd.wire.printable import one_line


def diagnosis_metrics(snapshot: Mapping[str, Any]) -> Iterator[Metric]:
    """Yields the metrics of a snapshot that a daemon has taken of itself. What is not known has no sample."""
    found = problems(snapshot)
    yield GaugeMetricFamily("prefetchd_healthy", "1: nothing is wrong, 0: degraded", value=not found)
    yield GaugeMetricFamily("prefetchd_problems", "What is wrong, counted", value=len(found))
    streams = judged_streams(snapshot)
    for name, about, of in _GAUGES:
        family = GaugeMetricFamily(name, about, labels=["stream"])
        for stream in streams:
            value = of(stream)
            if value is not None:
                family.add_metric([one_line(stream["name"])], float(value))
        yield family
    limits = GaugeMetricFamily(
        "prefetchd_verdict", "1 for the limit that the verdict names", labels=["stream", "limit"]
    )
    unreadable = CounterMetricFamily(
        "prefetchd_progress_unreadable", "Times that the progress file held no position", labels=["stream"]
    )
    for stream in streams:
        name = one_line(stream["name"])
        for limit in LIMITS:
            limits.add_metric([name, limit], stream["verdict"]["limit"] == limit)
        if stream["progress"]["file"]:
            unreadable.add_metric([name], stream["progress"]["unreadable"])
    yield from (limits, unreadable)


def _position(part: int) -> Callable[[Mapping[str, Any]], int | None]:
    """Returns what tells the epoch (0) or the step (1) of a stream's furthest consumer."""

    def of(stream: Mapping[str, Any]) -> int | None:
        found = [(each["epoch"], each["step"]) for each in stream["consumers"] if "epoch" in each]
        if stream["progress"]["epoch"] >= 0:
            found.append((stream["progress"]["epoch"], stream["progress"]["step"]))
        return max(found)[part] if found else None

    return of


_GAUGES: tuple[tuple[str, str, Callable[[Mapping[str, Any]], float | None]], ...] = (
    ("prefetchd_stream_failed", "1: the stream has failed", lambda stream: stream["failure"] is not None),
    ("prefetchd_store_fault", "1: batches cannot be stored", lambda stream: bool(stream["store_fault"])),
    ("prefetchd_runway_seconds", "How long what is ready lasts", lambda stream: stream["runway_s"]),
    (
        "prefetchd_stalled_share",
        "Share of the trainer's time that loading costs",
        lambda stream: stream["verdict"]["stalled_share"],
    ),
    (
        "prefetchd_perfect_speedup",
        "Times as fast as the trainer would run if it never waited",
        lambda stream: stream["verdict"]["perfect_speedup"],
    ),
    ("prefetchd_stream_workers", "Workers that it may have busy at once", lambda stream: stream["workers_limit"]),
    (
        "prefetchd_stream_tuned",
        "1: the daemon finds out how many workers it needs",
        lambda stream: stream["tuned"],
    ),
    (
        "prefetchd_stream_buffer_tuned",
        "1: the daemon finds out how many batches of buffer it needs",
        lambda stream: stream["buffer_tuned"],
    ),
    (
        "prefetchd_workers_wanted",
        "Workers that the verdict advises",
        lambda stream: stream["verdict"]["workers_wanted"],
    ),
    (
        "prefetchd_buffer_batches_wanted",
        "Batches of buffer that the verdict advises",
        lambda stream: stream["verdict"]["buffer_batches_wanted"],
    ),
    ("prefetchd_progress_epoch", "Epoch of the furthest consumer", _position(0)),
    ("prefetchd_progress_step", "Its next batch in that epoch", _position(1)),
)
