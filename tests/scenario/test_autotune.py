"""Nobody says how many workers: the daemon finds out, and no byte of any batch depends on it."""

from __future__ import annotations

import functools
import itertools
import json
import os
import threading
import time

import pytest
from prefetchd_client import PrefetchLoader
from prefetchd_client.errors import StreamFailedError
from torch.utils.data import Dataset

from tests.scenario.waiting import stream_when, until
from tests.unit.cli.trace_format import check_trace
from tests.unit.docs.status_keys import documented_keys

EPOCH = 4096
WORKER_BYTES = 64 << 20
LONG = 1 << 20
"""More than any number of workers makes in the time of a test."""


TUNED_WITHIN_S = 80.0
"""Each trial takes seconds, and on slow CPUs workers take as long to start."""


class Waiting(Dataset):
    """Each item waits, as for a network."""

    def __init__(self, waits_s: float = 0.02, length: int = LONG) -> None:
        self.waits_s, self.length = waits_s, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        time.sleep(self.waits_s)
        return index


def taken_until(daemon, stream, batches, holds, what):
    """Takes batches until the stream's snapshot is as wanted. Returns that, and the batches."""
    taken = []

    def look():
        # To read the status takes as long as a batch: who did so after each would be the limit.
        taken.extend(itertools.islice(batches, 20))
        return stream_when(daemon, stream)

    found = until(lambda: (found := look()) and holds(found) and found, what, TUNED_WITHIN_S)
    return found, taken


@pytest.fixture
def tuning_daemon(daemon):
    daemon.start("--autotune")
    return daemon


def test_workers_that_wait_become_more_than_the_cpus(tuning_daemon):
    with PrefetchLoader(Waiting(), batch_size=8, stream="waits") as loader:
        batches = iter(loader)
        found, taken = taken_until(tuning_daemon, "waits", batches, lambda it: len(it["workers"]) >= 16, "16 workers")
        assert found["tuned"]
        assert found["workers_limit"] >= 16
        first = found["tuning"][0]
        assert first["workers"] > first["before"]
        assert "samples wait" in first["why"]
        types = {"ago_s": float, "before": int, "workers": int, "batches": type(None), "why": str}
        assert {name: type(value) for name, value in first.items()} == types
        documented = {name for name in documented_keys() if name.startswith("streams[].tuning[].")}
        assert documented == {f"streams[].tuning[].{name}" for name in types}
        taken += itertools.islice(batches, 100)
    assert [index for batch in taken for index in batch.tolist()] == list(range(8 * len(taken)))
    assert "workers tuned" in tuning_daemon.paths.log.read_text()


def test_a_trace_has_what_was_decided_and_why(tuning_daemon, tmp_path):
    file = tmp_path / "trace.json"
    with PrefetchLoader(Waiting(), batch_size=8, stream="traced") as loader:
        batches = iter(loader)
        next(batches)
        tracing = threading.Thread(target=tuning_daemon.command, args=("trace", "--seconds", "3", "-o", str(file)))
        tracing.start()
        while tracing.is_alive():
            next(batches)
        decided = stream_when(tuning_daemon, "traced", lambda it: it["tuning"], "more workers")["tuning"]
    check_trace(file.read_text())
    found = [each for each in json.loads(file.read_text())["traceEvents"] if each["ph"] == "i"]
    # Something may have been decided before the trace began.
    told = [(f"{each['before']} to {each['workers']} workers", {"why": each["why"]}) for each in decided]
    assert found
    assert all((each["name"], each["args"]) in told for each in found if each["name"].endswith("workers"))


def test_a_number_that_was_said_stays(tuning_daemon):
    with PrefetchLoader(Waiting(), batch_size=8, stream="said", num_workers=2) as loader:
        batches = iter(loader)
        began_s = time.monotonic()
        for _ in batches:
            if time.monotonic() > began_s + 5:
                break
        found = stream_when(tuning_daemon, "said")
    assert not found["tuned"]
    assert (found["workers_limit"], found["tuning"]) == (2, [])


def test_the_daemon_s_workers_are_a_bound(daemon):
    daemon.start("--autotune", "--workers", "6")
    with PrefetchLoader(Waiting(), batch_size=8, stream="bounded") as loader:
        batches = iter(loader)
        began_s = time.monotonic()
        most = 0
        while time.monotonic() < began_s + 5:
            next(batches)
            most = max(most, len(stream_when(daemon, "bounded")["workers"]))
        found = stream_when(daemon, "bounded")
    assert found["tuned"]
    assert (most, found["workers_limit"], found["tuning"]) == (6, 6, [])


def test_it_is_on_unless_somebody_says_no(daemon):
    daemon.start()
    with PrefetchLoader(Waiting(0.001, EPOCH), batch_size=8, stream="on") as loader:
        assert len(list(loader)) == EPOCH // 8
        found = stream_when(daemon, "on")
    assert (found["tuned"], found["buffer_tuned"]) == (True, True)


@pytest.mark.parametrize("said", [["--no-autotune"]])
def test_it_may_be_off(daemon, said):
    daemon.start(*said)
    with PrefetchLoader(Waiting(0.001, EPOCH), batch_size=8, stream="off") as loader:
        assert len(list(loader)) == EPOCH // 8
        found = stream_when(daemon, "off")
    assert not found["tuned"]
    assert found["tuning"] == []


@functools.cache
def kept() -> bytes:
    """What a process needs for its samples: no attribute, which DataLoader would have in the trainer."""
    return os.urandom(WORKER_BYTES)


class Large(Waiting):
    def __getitem__(self, index: int) -> int:
        kept()
        return super().__getitem__(index)


@pytest.mark.slow
def test_no_more_than_there_is_memory_for(daemon):
    daemon.start("--autotune", "--worker-memory", f"{4 * WORKER_BYTES}")
    most = 0
    with PrefetchLoader(Large(), batch_size=8, stream="large") as loader:
        batches = iter(loader)

        def is_full(found: dict) -> bool:
            nonlocal most
            most = max(most, len(found["workers"]))
            # One more would be seen soon.
            return found["workers_limit"] == 3 and found["produced_batches"] > 200

        found, _ = taken_until(daemon, "large", batches, is_full, "as many as there is room for")
    assert found["tuned"]
    assert most <= 3


def test_a_bound_that_is_too_small_for_one_worker_is_an_error_with_figures(daemon):
    daemon.start("--autotune", "--worker-memory", "1MiB")
    with (
        PrefetchLoader(Waiting(0.005), batch_size=8, stream="short") as loader,
        pytest.raises(StreamFailedError, match=r"a worker takes .*MiB.* may take 1.0 MiB.*`\[daemon\] worker_memory`"),
    ):
        for _ in loader:
            pass


def test_a_bound_of_what_is_not_tuned_is_an_error(daemon):
    refused = daemon.command("run", "--no-autotune", "--worker-memory", "1GiB", check=False)
    assert refused.returncode
    assert "--worker-memory" in refused.stderr
    assert "--autotune" in refused.stderr
