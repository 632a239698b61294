"""A trace of a daemon that works, and what happens when it ends meanwhile."""

from __future__ import annotations

import threading

from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Numbers
from tests.scenario.test_status import Slow
from tests.scenario.waiting import until
from tests.unit.cli.trace_format import check_trace


def test_tasks_and_waits_are_in_the_file(daemon, tmp_path):
    daemon.start("--workers", "2")
    file = tmp_path / "trace.json"
    with PrefetchLoader(Slow(0.002), batch_size=8, buffer=6, stream="traced", num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        done = []
        tracing = threading.Thread(
            target=lambda: done.append(daemon.command("trace", "--seconds", "2", "-o", str(file)))
        )
        tracing.start()
        taken = 1
        while tracing.is_alive():
            next(iterator)
            taken += 1
    assert done[0].returncode == 0
    found = check_trace(file.read_text())
    assert f"{len(found)} events in {file}" in done[0].stdout
    fills = [each for each in found if each["cat"] == "fill"]
    waits = [each for each in found if each["cat"] == "wait"]
    assert {each["tid"] for each in fills} == {1, 2}
    assert len({each["args"]["step"] for each in fills}) > 20
    rows: dict[int, list[tuple[int, int]]] = {}
    for each in fills:
        if each["name"].startswith("rows"):
            first, end = map(int, each["args"]["rows"].split(" to "))
            rows.setdefault(each["args"]["step"], []).append((first, end))
    # The trace has begun and ended amid a batch, or amid all that the ring has room for if one worker stood still.
    whole = sorted(rows)[7:-7]
    assert len(whole) > 20
    for step in whole:
        filled = [row for first, end in rows[step] for row in range(first, end)]
        assert sorted(filled) == list(range(8)), (step, rows[step])
    # Eight samples of 2 ms by two workers: no batch comes sooner than in 8 ms, and the trainer does nothing.
    assert waits
    assert all(0 <= each["args"]["step"] < taken for each in waits)
    assert max(each["ts"] + each["dur"] for each in found) < 10_000_000


def test_a_daemon_that_ends_meanwhile_ends_the_trace(daemon, tmp_path):
    daemon.start()
    done = []
    tracing = threading.Thread(
        target=lambda: done.append(
            daemon.command("trace", "--seconds", "600", "-o", str(tmp_path / "t.json"), check=False)
        )
    )
    tracing.start()
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=6) as loader:
        next(iter(loader))
    daemon.command("stop")
    tracing.join(60)
    assert done[0].returncode == 1
    assert "daemon" in done[0].stderr
    until(lambda: not (tmp_path / "t.json").exists(), "no file was written")


def test_a_trace_of_no_time_is_refused(daemon):
    daemon.start()
    assert daemon.command("trace", "--seconds", "0", check=False).returncode == 2


def test_a_file_that_cannot_be_written_is_an_error(daemon):
    daemon.start()
    done = daemon.command("trace", "--seconds", "0.1", "-o", "/proc/none/t.json", check=False)
    assert done.returncode == 1
    assert "/proc/none/t.json cannot be written" in done.stderr
