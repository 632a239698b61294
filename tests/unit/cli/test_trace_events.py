"""A trace as a file that others open."""

from __future__ import annotations

import json

import hypothesis.strategies as st
from hypothesis import given

from prefetchd.cli.trace_events import trace_json
from prefetchd.wire.messages import FILL_ROWS, FILL_WHOLE, TRACED_FILL, TRACED_REMOTE, TRACED_WAIT
from tests.unit.cli.trace_format import check_trace

FILL = (TRACED_FILL, 3, 2, 0, 7, 8, 16, FILL_ROWS, 1_002_000, 500)
WAIT = (TRACED_WAIT, 3, 4711, 0, 7, 0, 0, 0, 1_000_000, 2_600)


def test_a_task_and_a_wait():
    found = check_trace(json.dumps(trace_json([FILL, WAIT], {3: "train"}, 0)))
    assert [(each["name"], each["ts"], each["dur"]) for each in found] == [
        ("waits for train 0:7", 0, 2600),
        ("rows 0:7", 2000, 500),
    ]
    assert found[1]["args"] == {"epoch": 0, "step": 7, "rows": "8 to 16"}


def test_a_batch_of_another_machine():
    remote = (TRACED_REMOTE, 3, 12, 0, 9, 300, 0, FILL_WHOLE, 1_002_000, 900)
    whole = trace_json([WAIT, remote], {3: "train"}, 0)
    found = check_trace(json.dumps(whole))
    assert (found[1]["name"], found[1]["ts"], found[1]["dur"]) == ("batch 0:9, elsewhere", 2000, 900)
    assert found[1]["args"] == {"epoch": 0, "step": 9, "made in": "0.3 ms"}
    assert "remote worker 12" in {each["args"].get("name") for each in whole["traceEvents"]}


def test_another_number_of_workers():
    tuned = ("workers", (1_000_500, 3, 2, 8), "samples wait")
    found = trace_json([WAIT], {3: "train"}, 0, [tuned])
    assert len(check_trace(json.dumps(found))) == 1
    (change,) = [each for each in found["traceEvents"] if each["ph"] == "i"]
    assert (change["name"], change["ts"], change["args"]) == ("2 to 8 workers", 500, {"why": "samples wait"})
    alone = trace_json([], {3: "train"}, 0, [tuned])
    assert check_trace(json.dumps(alone)) == []
    assert alone["traceEvents"][-1]["ts"] == 0


def test_another_depth_of_the_ring():
    resized = ("batches", (1_000_600, 3, 30, 60), "it was empty")
    found = trace_json([WAIT], {3: "train"}, 0, [resized, ("workers", (1_000_500, 3, 2, 8), "samples wait")])
    check_trace(json.dumps(found))
    changes = [each for each in found["traceEvents"] if each["ph"] == "i"]
    assert [each["name"] for each in changes] == ["2 to 8 workers", "30 to 60 batches"]
    assert changes[1]["args"] == {"why": "it was empty"}


def test_nothing_happened():
    assert check_trace(json.dumps(trace_json([], {}, 0))) == []


def test_two_tasks_of_a_worker_that_seem_to_overlap_do_not():
    later = (TRACED_FILL, 3, 2, 0, 8, 0, 16, FILL_WHOLE, 1_002_490, 100)
    first, second = check_trace(json.dumps(trace_json([later, FILL], {3: "s"}, 0)))
    assert second["ts"] == first["ts"] + first["dur"]


def test_what_had_no_room_is_told():
    assert trace_json([], {}, 12)["otherData"] == {"dropped_events": 12}


events = st.lists(
    st.tuples(
        st.sampled_from([TRACED_FILL, TRACED_WAIT, TRACED_REMOTE]),
        st.integers(1, 3),
        st.integers(1, 3),
        st.integers(0, 2),
        st.integers(0, 9),
        st.integers(0, 4),
        st.integers(0, 4),
        st.integers(0, 3),
        st.integers(1, 1 << 50),
        st.integers(0, 10_000),
    ),
    max_size=30,
)


@given(events)
def test_whatever_comes_the_file_holds_to_the_format(found):
    assert len(check_trace(json.dumps(trace_json(found, {1: "one", 2: "two"}, 0)))) == len(found)
