"""Tells what a stream has on other machines: for the snapshot, as plain data, and for scrapes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prefetchd.daemon.engine.stream.remote_work import RemoteWork
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.wire.printable import one_line

if TYPE_CHECKING:
    from prometheus_client.core import Metric


GIVEN_BACK = "given back, as nothing was left for them to make; they come again when a trainer is about to wait"


def remote_snapshot(work: RemoteWork | None) -> dict[str, Any] | None:
    """Returns the stream's remote workers and their nodes; None when it asks for none."""
    if work is None:
        return None
    workers = work.workers.values()
    return {
        "wanted": work.wanted,
        "bridge": "none" if not work.bridge else work.stage.value,
        "why_not": work.why_not or (GIVEN_BACK if work.is_given_back else work.why_unused),
        "waits_for": work.waits_for,
        "receiving_s_per_gb": work.receiving_s_a_gb,
        "workers": len(work.workers),
        "ready": sum(bool(each.node) for each in workers),
        "under_way": sum(len(each.tasks) for each in workers),
        "late": sum(len(each.late) for each in workers),
        "hedges_won": work.hedges_won,
        "hedges_lost": work.hedges_lost,
        "nodes": [
            {
                "name": name,
                "processor": node.processor,
                "workers": sum(each.node == name for each in workers),
                "proved": node.is_proved,
                "distrusted": node.is_distrusted,
                "batches": node.batches,
                "bytes": node.payload_bytes,
                "transfer_s": node.transfer_us / 1e6,
                "lost": node.lost,
                "mismatches": node.mismatches,
                "compared": node.compared,
                "why": node.why,
                "handed_out": node.suspects,
            }
            for name, node in work.nodes.items()
        ],
    }


# Name less "_total", what it counts, and where that is in a node's entry.
NODE_COUNTERS = (
    ("prefetchd_remote_batches", "Batches that a node has made", "batches"),
    ("prefetchd_remote_bytes", "Payloads of these", "bytes"),
    ("prefetchd_remote_transfer_seconds", "Time that they were on the way", "transfer_s"),
    ("prefetchd_remote_tasks_lost", "Tasks that ended with a remote worker", "lost"),
    ("prefetchd_remote_mismatches", "Batches that were not what they are here", "mismatches"),
)


def remote_metrics(streams: Sequence[StreamState]) -> Iterator[Metric]:
    """Yields what scrapes are told of other machines. Needs prometheus_client."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found = [(one_line(each.name), remote_snapshot(each.remote)) for each in streams if each.remote is not None]
    workers = GaugeMetricFamily(
        "prefetchd_remote_workers", "Workers on other machines that can take tasks", labels=["stream"]
    )
    hedges = CounterMetricFamily(
        "prefetchd_remote_hedges", "Batches that were taken back in time, by who made them", labels=["stream", "winner"]
    )
    for name, remote in found:
        assert remote is not None
        workers.add_metric([name], remote["ready"])
        hedges.add_metric([name, "here"], remote["hedges_won"])
        hedges.add_metric([name, "node"], remote["hedges_lost"])
    yield workers
    yield hedges
    for metric, about, key in NODE_COUNTERS:
        family = CounterMetricFamily(metric, about, labels=["stream", "node"])
        for name, remote in found:
            for node in remote["nodes"] if remote is not None else ():
                family.add_metric([name, one_line(node["name"])], node[key])
        yield family
