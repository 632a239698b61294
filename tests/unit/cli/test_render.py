"""What `prefetchd status` prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefetchd.cli.render import BAR_CELLS, bar, render
from prefetchd.status.snapshot import Report
from prefetchd.status.status_object import status_object
from prefetchd.wire.errors import ProtocolError
from tests.unit.cli.examples import consumer, every_state, report, ring, stream, worker
from tests.unit.cli.golden.regenerate import WIDTHS, path, screen

SOCKET = Path("/run/d.sock")


def lines(*streams, width=80, **about):
    return render(status_object(report(*streams, **about)), SOCKET, width)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_screen_is_the_golden_one(width):
    assert screen(width) == path(width).read_text("utf-8"), "run `python -m tests.unit.cli.golden.regenerate`"


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width):
    assert max(len(line) for line in screen(width).splitlines()) <= width


@pytest.mark.parametrize("height", [5, 8, 12, 16, 24, 40, 200])
@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_small_screen_keeps_what_limits_each_stream(width, height):
    found = status_object(every_state())
    whole = render(found, SOCKET, width, history=True)
    shown = render(found, SOCKET, width, history=True, height=height)
    assert len(shown) <= height
    if height >= len(whole):
        assert shown == whole
    remaining = iter(whole)
    essential = [line for line in shown if not line.startswith("and ")]
    assert all(line in remaining for line in essential), "it leaves lines out, and changes none"


def test_what_is_left_out_first_are_details():
    found = status_object(report(stream(consumers=[consumer()], workers=[worker(0)])))
    whole = render(found, SOCKET, 60, history=True)
    kept = [render(found, SOCKET, 60, history=True, height=height) for height in range(len(whole), 0, -1)]
    verdict = next(line for line in whole if line.startswith("  > "))
    last = {
        sign: min(len(lines) for lines in kept if any(line.startswith(sign) for line in lines))
        for sign in ("  workers", "  consumer", "  made", "  ring", "  > ")
    }
    assert last["  workers"] > last["  consumer"] > last["  made"] > last["  ring"] > last["  > "]
    assert any(verdict in lines for lines in kept if len(lines) <= 16)


def test_no_daemon():
    assert render(status_object(Report("absent")), SOCKET) == [
        "no daemon on /run/d.sock; the first loader starts one, or `prefetchd run` does"
    ]


def test_a_daemon_with_nothing_to_do():
    assert lines() == ["prefetchd 0.1.0  healthy  pid 99  up 12.3 s  workers 3 busy of 8", "no streams"]


def test_streams_that_had_no_room_in_the_segment_are_counted():
    found = report(stream())
    found.snapshot["streams_left_out"] = 3
    assert render(status_object(found), SOCKET)[-2:] == ["", "and 3 more streams, for which there is no room here"]


@pytest.mark.parametrize("state", ["hanging", "dead"])
def test_a_daemon_that_is_not_well_is_named_with_its_last_sign_of_life(state):
    found = lines(stream(), state=state, age_s=75.0)
    assert found[0].startswith(f"prefetchd 0.1.0  {state}  pid 99")
    assert "its last sign of life is 75.0 s old" in found[1]


@pytest.mark.parametrize("stage", ["awaiting program", "loading"])
def test_a_stream_without_a_ring_says_where_it_is(stage):
    assert lines(stream(ring=None, stage=stage))[-1] == f"  {stage}"


def test_a_parked_ring_is_marked():
    assert "[parked]" in "".join(lines(stream(lingering=True, stage="parked", consumers=[])))


def test_a_consumer_without_a_ring_is_its_pid():
    assert "  consumer pid 12" in lines(stream(consumers=[{"pid": 12, "departed": False}]))


def test_many_workers_are_counted_and_not_all_shown():
    found = lines(stream(workers=[worker(number) for number in range(1, 101)], workers_limit=100), width=120)
    assert "    and 84 more" in found
    assert any("PSS 31.2 GiB" in line for line in found)


def test_a_worker_whose_memory_is_not_known_is_left_out_of_the_sum():
    found = lines(stream(workers=[worker(1), worker(2, pss_bytes=None)]))
    assert any("PSS 320.0 MiB" in line for line in found)


def test_a_long_wait_is_shown_while_it_lasts():
    found = "\n".join(lines(stream(consumers=[consumer(waiting_s=130.0)])))
    assert "waits for 2 min 10 s by now" in found


@pytest.mark.parametrize(
    ("counts", "cells"),
    [
        ({"free": 20, "filling": 0, "ready": 0, "leased": 0}, "...................."),
        ({"free": 0, "filling": 0, "ready": 20, "leased": 0}, "####################"),
        ({"free": 0, "filling": 20, "ready": 0, "leased": 0}, "++++++++++++++++++++"),
        ({"free": 4, "filling": 2, "ready": 10, "leased": 4}, "##########====++...."),
        ({"slots": 1000, "free": 999, "filling": 1, "ready": 0, "leased": 0}, "+..................."),
        ({"slots": 4, "free": 1, "filling": 1, "ready": 1, "leased": 1}, "#####=====+++++....."),
        ({"slots": 0, "free": 0, "filling": 0, "ready": 0, "leased": 0}, "...................."),
        ({"behind": 3, "quarantined": 2, "ready": 5, "leased": 0, "filling": 0}, "#####---xx.........."),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_bar_shows_what_slots_are(counts, cells):
    assert bar(ring(**counts)) == f"[{cells}]"
    assert len(cells) == BAR_CELLS


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


# --- health ---


def test_what_is_not_well_is_told_once_and_first():
    found = status_object(every_state())
    assert found["health"] == "degraded"
    begins = [each.split(" ")[0] for each in found["problems"]]
    assert begins == ["/prefetchd-1-ring-2", "stream", "batches", "declared"]
    assert "loginctl enable-linger" in found["problems"][0]


def test_a_daemon_whose_workers_were_killed_for_memory_is_degraded():
    found = report(stream())
    found.snapshot["workers"]["limit"] = 6
    assert status_object(found)["problems"] == ["workers were killed for memory: 6 of 8 may be busy at once since"]


@pytest.mark.parametrize("place", ["recent", "snapshot"])
def test_a_daemon_of_another_version_that_says_less_is_told_as_such(place):
    """Found as a KeyError after an upgrade: the daemon that runs goes on with the old version."""
    found = report(stream())
    if place == "recent":
        del found.snapshot["streams"][0]["recent"]["bursts"]
    else:
        del found.snapshot["load"]
    with pytest.raises(ProtocolError, match="it is of another version than this command"):
        status_object(found)


def test_a_slow_trainer_is_no_illness():
    assert status_object(report(stream()))["health"] == "healthy"


def test_the_runway_is_what_is_ready_at_the_trainer_s_own_pace():
    found = status_object(report(stream()))["streams"][0]
    assert found["runway_s"] == pytest.approx(10 / (12.3 * 60 / 37.2))
    assert status_object(report(stream(recent=None)))["streams"][0]["runway_s"] is None
