"""What is told of other machines: to the status as plain data, and to scrapes."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.remote_work import BridgeStage, Node, RemoteTask, RemoteWork, RemoteWorker
from prefetchd.daemon.telemetry.remote_snapshot import NODE_COUNTERS, remote_metrics, remote_snapshot


def work() -> RemoteWork:
    """Three remote workers of four: one on its way, and two on a node that has made batches; another node is known."""
    found = RemoteWork(4)
    found.bridge, found.stage = 9, BridgeStage.OPEN
    found.workers = {1: RemoteWorker(1), 2: RemoteWorker(2, "n1"), 3: RemoteWorker(3, "n1", late={30, 31, 32})}
    for number in (20, 21):
        found.workers[2].tasks[number] = RemoteTask(number, Piece(Batch((0, number), 4), 0, 4), 0.0, 0)
    found.nodes = {
        "n1": Node("a processor", is_proved=True, batches=12, payload_bytes=3000, transfer_us=2_500_000, lost=2),
        "n2": Node(is_distrusted=True, batches=1, mismatches=1, compared=3, why="a file differs", suspects=7),
    }
    found.waits_for, found.receiving_s_a_gb = "waiting for 4 CPUs", 2.3
    found.hedges_won, found.hedges_lost = 5, 6
    return found


def test_a_stream_that_asks_for_no_remote_worker_has_no_entry():
    assert remote_snapshot(None) is None


def test_it_counts_workers_tasks_and_hedges():
    found = remote_snapshot(work())
    assert found is not None
    counted = {name: value for name, value in found.items() if name != "nodes"}
    assert counted == {
        "wanted": 4,
        "bridge": "open",
        "why_not": "",
        "waits_for": "waiting for 4 CPUs",
        "receiving_s_per_gb": 2.3,
        "workers": 3,
        "ready": 2,
        "under_way": 2,
        "late": 3,
        "hedges_won": 5,
        "hedges_lost": 6,
    }


def test_it_has_an_entry_for_each_node_also_where_no_worker_is_left():
    found = remote_snapshot(work())
    assert found is not None
    assert found["nodes"] == [
        {
            "name": "n1",
            "processor": "a processor",
            "workers": 2,
            "proved": True,
            "distrusted": False,
            "batches": 12,
            "bytes": 3000,
            "transfer_s": 2.5,
            "lost": 2,
            "mismatches": 0,
            "compared": 0,
            "why": "",
            "handed_out": 0,
        },
        {
            "name": "n2",
            "processor": "",
            "workers": 0,
            "proved": False,
            "distrusted": True,
            "batches": 1,
            "bytes": 0,
            "transfer_s": 0.0,
            "lost": 0,
            "mismatches": 1,
            "compared": 3,
            "why": "a file differs",
            "handed_out": 7,
        },
    ]


@pytest.mark.parametrize(
    ("bridge", "stage", "shown"),
    [
        (0, BridgeStage.OPENING, "none"),
        (0, BridgeStage.OPEN, "none"),
        (9, BridgeStage.OPENING, "opening"),
        (9, BridgeStage.OPEN, "open"),
    ],
)
def test_a_bridge_is_shown_by_its_stage(bridge, stage, shown):
    it = work()
    it.bridge, it.stage = bridge, stage
    found = remote_snapshot(it)
    assert found is not None
    assert found["bridge"] == shown


def test_why_there_is_no_remote_work_is_told_in_words():
    it = RemoteWork(2)
    it.why_not = "no Ray cluster answers at head:1"
    found = remote_snapshot(it)
    assert found is not None
    assert (found["why_not"], found["workers"], found["nodes"]) == ("no Ray cluster answers at head:1", 0, [])


def test_that_workers_were_given_back_is_told_where_nothing_is_wrong():
    it = RemoteWork(2)
    it.is_given_back = True
    found = remote_snapshot(it)
    assert found is not None
    assert found["why_not"].startswith("given back")
    it.why_not = "no Ray cluster answers at head:1"
    found = remote_snapshot(it)
    assert found is not None
    assert found["why_not"] == it.why_not


def test_it_is_plain_data_of_its_own():
    it = work()
    found = remote_snapshot(it)
    assert found is not None
    assert json.loads(json.dumps(found)) == found
    it.nodes["n1"].batches += 1
    assert found["nodes"][0]["batches"] == 12


# --- scrapes ---


def samples(*streams: tuple[str, RemoteWork | None]) -> dict[tuple[str, tuple[str, ...]], float]:
    """What is scraped of the streams: value by (name, label values)."""
    pytest.importorskip("prometheus_client")
    found = {}
    for family in remote_metrics([SimpleNamespace(name=name, remote=remote) for name, remote in streams]):
        for each in family.samples:
            found[each.name, tuple(each.labels.values())] = each.value
    return found


def test_scrapes_count_the_workers_that_can_take_tasks_and_who_won():
    found = samples(("train", work()))
    assert found["prefetchd_remote_workers", ("train",)] == 2
    assert found["prefetchd_remote_hedges_total", ("train", "here")] == 5
    assert found["prefetchd_remote_hedges_total", ("train", "node")] == 6


def test_each_counter_of_a_node_is_scraped_for_each_node():
    it = work()
    found, told = samples(("train", it)), remote_snapshot(it)
    assert told is not None
    for metric, _, key in NODE_COUNTERS:
        for node in told["nodes"]:
            assert found[f"{metric}_total", ("train", node["name"])] == node[key]
    assert len(found) == 3 + len(NODE_COUNTERS) * 2


def test_a_stream_without_remote_workers_is_not_scraped():
    assert samples(("here", None)) == {}
    assert {labels[0] for _, labels in samples(("here", None), ("one", work()), ("other", work()))} == {"one", "other"}


def test_names_are_scraped_in_one_line():
    it = work()
    it.nodes["a\nb"] = it.nodes.pop("n2")
    for _, labels in samples(("tr\nain", it)):
        assert all("\n" not in label for label in labels)
