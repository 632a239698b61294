"""What `prefetchd status` prints, line by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefetchd.cli.render import render
from prefetchd.cli.snapshot import Report

GIB = 1 << 30
SOCKET = Path("/run/d.sock")


def stream(**changes):
    found = {
        "name": "train.py:0",
        "stage": "running",
        "failure": None,
        "fingerprint": "0" * 32,
        "seed": 7,
        "seed_source": "argument",
        "samples": 50_000,
        "batch_size": 64,
        "steps": 782,
        "order": "shuffle",
        "rank": 0,
        "world_size": 1,
        "by_rows": True,
        "lingering": False,
        "ring": ring(),
        "consumers": [consumer()],
        "workers": [],
        "produced_batches": 1200,
        "produced_samples": 76_800,
        "produced_bytes": 3 * GIB,
        "consumed_batches": 1190,
        "tasks": 2400,
        "fill_s": 60.0,
        "failed_batches": 0,
        "deviating_batches": 0,
        "worker_deaths": 1,
    }
    return found | changes


def ring(**changes):
    found = {"segment": "/x", "segment_bytes": GIB, "slots": 20, "slot_bytes": 1 << 22}
    found |= {"free": 4, "filling": 2, "ready": 10, "leased": 4, "behind": 0, "quarantined": 0}
    return found | changes


def consumer(**changes):
    found = {"pid": 4711, "departed": False, "epoch": 1, "step": 408, "yielded": 1190, "waited_s": 2.345}
    found |= {"longest_wait_s": 0.5432, "private_copies": 0, "held": 4}
    return found | changes


def report(*streams, state="running", age_s=0.1, up_s=12.34):
    return Report(
        state,
        age_s,
        {
            "snapshot_version": 1,
            "taken_unix_s": 1.0,
            "daemon": {"pid": 99, "software": "0.1.0", "started_unix_s": 1.0, "up_s": up_s},
            "workers": {"limit": 8, "running": 4, "busy": 3},
            "streams": list(streams),
        },
    )


def lines(*streams, **about):
    return render(report(*streams, **about), SOCKET)


def test_no_daemon():
    assert render(Report("absent"), SOCKET) == [
        "no daemon on /run/d.sock; the first loader starts one, or `prefetchd run` does"
    ]


def test_a_daemon_with_nothing_to_do():
    assert lines() == ["prefetchd 0.1.0  running  pid 99  up 12.3 s  workers 3 busy of 8", "no streams"]


def test_a_stream_that_runs():
    assert lines(stream()) == [
        "prefetchd 0.1.0  running  pid 99  up 12.3 s  workers 3 busy of 8",
        "",
        "train.py:0  shuffle, batch 64, 782 steps an epoch, seed 7 (argument)",
        "  ring [##############++....] 10 ready, 4 in use, 2 filling, 4 free of 20 (1.0 GiB)",
        "  produced 1200 batches (76800 samples, 3.0 GiB), consumed 1190, failed 0, worker deaths 1",
        "  consumer pid 4711  epoch 1 step 408  yielded 1190  waited 2.35 s (longest 543 ms)",
    ]


def test_a_ring_whose_name_was_removed_is_warned_of():
    found = lines(stream(ring=ring(name_removed=True)))
    assert found[4].startswith("  /x was removed from /dev/shm: the run goes on, but the ring ends with the daemon.")
    assert len(found) == len(lines(stream(ring=ring(name_removed=False)))) + 1


def test_several_streams_are_told_apart_by_an_empty_line():
    found = lines(stream(name="one"), stream(name="two"))
    assert found.count("") == 2
    assert [line.split("  ")[0] for line in found if "steps an epoch" in line] == ["one", "two"]


def test_streams_that_had_no_room_in_the_segment_are_counted():
    found = report(stream())
    found.snapshot["streams_left_out"] = 3
    assert render(found, SOCKET)[-2:] == ["", "and 3 more streams, for which there is no room here"]


@pytest.mark.parametrize("state", ["hanging", "dead"])
def test_a_daemon_that_is_not_well_is_named_with_its_last_sign_of_life(state):
    found = lines(stream(), state=state, age_s=75.0)
    assert found[0].startswith(f"prefetchd 0.1.0  {state}  pid 99")
    assert found[1] == "the daemon's last sign of life is 75.0 s old"
    assert "train.py:0" in found[3]


def test_a_stream_that_failed_says_why_and_nothing_of_its_ring():
    found = lines(stream(failure="worker_init_fn(0)", stage="failed"))
    assert found[-1] == "  failed: worker_init_fn(0)"
    assert len(found) == 4


@pytest.mark.parametrize("stage", ["awaiting program", "loading"])
def test_a_stream_without_a_ring_says_where_it_is(stage):
    assert lines(stream(ring=None, stage=stage))[-1] == f"  {stage}"


def test_a_ring_that_lingers_is_marked():
    found = lines(stream(lingering=True, consumers=[]))
    assert found[2].endswith("  [lingering]")
    assert not [line for line in found if "consumer" in line]


def test_a_consumer_without_a_ring_is_its_pid():
    assert lines(stream(consumers=[{"pid": 12, "departed": False}]))[-1] == "  consumer pid 12"


@pytest.mark.parametrize(
    ("counts", "bar"),
    [
        ({"free": 20, "filling": 0, "ready": 0, "leased": 0}, "...................."),
        ({"free": 0, "filling": 0, "ready": 20, "leased": 0}, "####################"),
        ({"free": 0, "filling": 20, "ready": 0, "leased": 0}, "++++++++++++++++++++"),
        ({"free": 0, "filling": 1, "ready": 19, "leased": 0}, "###################+"),
        ({"slots": 1000, "free": 999, "filling": 1, "ready": 0, "leased": 0}, "+..................."),
        ({"slots": 4, "free": 1, "filling": 1, "ready": 1, "leased": 1}, "##########+++++....."),
        ({"slots": 0, "free": 0, "filling": 0, "ready": 0, "leased": 0}, "...................."),
        ({"slots": 20, "free": 0, "filling": 4, "ready": 19, "leased": 4}, "#" * 20),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_bar_is_always_twenty_cells(counts, bar):
    text = lines(stream(ring=ring(**counts)))[3]
    assert text.split("[")[1].split("]")[0] == bar


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3.0, "0.0 s"),
        (0.04, "0.0 s"),
        (99.94, "99.9 s"),
        (100.0, "1 min 40 s"),
        (3599.9, "59 min 59 s"),
        (3600.0, "1 h 00 min"),
        (90_000.0, "25 h 00 min"),
    ],
)
def test_durations(seconds, text):
    assert f"up {text}  workers" in lines(up_s=seconds)[0]
