"""An operator pauses, drains, evicts and stops a daemon that works."""

from __future__ import annotations

import json
import threading
import time

import psutil
import pytest
from prefetchd_client import PrefetchLoader
from prefetchd_client.errors import DaemonRefusedError
from torch.utils.data import Dataset

from tests.scenario.datasets import Numbers
from tests.scenario.waiting import is_gone, ring_when, stream_when, until


def is_full(stream):
    ring = stream["ring"]
    return ring and ring["ready"] + ring["leased"] == ring["slots"]


def log(daemon):
    return [json.loads(line) for line in daemon.paths.log.read_text().splitlines()]


def test_a_paused_stream_serves_its_ring_and_goes_on_when_it_is_resumed(daemon):
    with PrefetchLoader(Numbers(4000), batch_size=4, buffer=6, stream="paused") as loader:
        iterator = iter(loader)
        next(iterator)
        stream_when(daemon, "paused", is_full, "its ring is full")
        assert daemon.command("pause", "paused").stdout == "paused paused\n"
        stream_when(daemon, "paused", lambda stream: stream["paused"])
        assert "[paused]" in daemon.command("status").stdout
        for _ in range(5):
            next(iterator)
        empty = ring_when(daemon, "paused", lambda ring: ring["ready"] == 0)
        assert empty["ring"]["filling"] == 0
        got = []
        waiting = threading.Thread(target=lambda: got.append(next(iterator)))
        waiting.start()
        stream_when(daemon, "paused", lambda stream: stream["consumers"][0]["waiting_s"] > 0, "next() waits")
        assert not got
        assert daemon.command("resume").stdout == "resumed paused\n"
        waiting.join(60)
        assert len(got) == 1
        assert daemon.command("resume").stdout == "no stream was paused\n"


class Held(Dataset):
    """Samples from the eighth on are there when the file `gate` is."""

    def __init__(self, gate):
        self.gate = gate

    def __len__(self):
        return 400

    def __getitem__(self, index):
        while index >= 8 and not self.gate.exists():
            time.sleep(0.01)
        return index


def test_a_drain_says_after_its_timeout_what_is_still_under_way(daemon, tmp_path):
    gate = tmp_path / "gate"
    with PrefetchLoader(Held(gate), batch_size=4, buffer=6, stream="held", num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        stream_when(daemon, "held", lambda stream: any(each["index"] >= 8 for each in stream["workers"]))
        done = daemon.command("drain", "held", "--timeout", "1", check=False)
        assert done.returncode == 1
        assert "after 1 s tasks are under way: held; `prefetchd status` shows at what" in done.stderr
        gate.touch()
        assert daemon.command("drain", "held").returncode == 0
        assert stream_when(daemon, "held")["workers"] == []


def test_a_drained_stream_has_no_processes_and_its_ring_is_served(daemon):
    with PrefetchLoader(Numbers(4000), batch_size=4, buffer=6, stream="drained", num_workers=2) as loader:
        iterator = iter(loader)
        next(iterator)
        stream = stream_when(daemon, "drained", lambda stream: is_full(stream) and stream["workers"])
        pids = [worker["pid"] for worker in stream["workers"]]
        assert daemon.command("drain", "drained").stdout == "drained drained\n"
        until(lambda: all(map(is_gone, pids)), "its workers are gone")
        for _ in range(5):
            next(iterator)
        daemon.command("resume", "drained")
        for _ in range(10):
            next(iterator)


def test_a_stream_that_lingers_is_evicted_and_one_in_use_only_by_force(daemon):
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=6, stream="evicted") as loader:
        next(iter(loader))
        refused = daemon.command("evict", "evicted", check=False)
        assert refused.returncode == 1
        assert "--force" in refused.stderr
    assert len([name for name in daemon.segments() if "-ring-" in name]) == 1
    assert daemon.command("evict", "evicted").stdout == "evicted evicted\n"
    until(lambda: not [name for name in daemon.segments() if "-ring-" in name], "its ring is gone")
    loader = PrefetchLoader(Numbers(400), batch_size=4, buffer=6, stream="forced")
    iterator = iter(loader)
    next(iterator)
    daemon.command("evict", "--force", "forced")
    with pytest.raises(DaemonRefusedError, match="was evicted"):
        list(iterator)
    loader.close()


def test_an_unknown_stream_is_an_error_that_lists_those_there_are(daemon):
    daemon.start()
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=6, stream="known") as loader:
        next(iter(loader))
        for verb in ("pause", "resume", "drain", "evict"):
            done = daemon.command(verb, "unknown", check=False)
            assert (done.returncode, done.stdout) == (1, "")
            assert "no stream 'unknown'; there are: 'known'" in done.stderr


def test_the_log_level_is_changed_while_it_runs(daemon):
    daemon.start()
    assert daemon.command("log-level", "error").stdout == "log level error\n"
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=6, stream="unheard") as loader:
        next(iter(loader))
    daemon.command("evict", "unheard")
    daemon.command("log-level", "info")
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=6, stream="heard") as loader:
        next(iter(loader))
    daemon.command("evict", "heard")
    assert [each["stream"] for each in log(daemon) if each["event"] == "stream evicted"] == ["heard"]
    assert [each["level"] for each in log(daemon) if each["event"] == "log level"] == ["error", "info"]
    assert daemon.command("log-level", "loud", check=False).returncode == 2


class Writing(Dataset[int]):
    """Samples that leave a file when they are done, `sample_s` after they began."""

    def __init__(self, directory: str, sample_s: float) -> None:
        self.directory = directory
        self.sample_s = sample_s

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        with open(f"{self.directory}/{index}.begun", "w"):
            pass
        time.sleep(self.sample_s)
        with open(f"{self.directory}/{index}.done", "w"):
            pass
        return index


@pytest.mark.parametrize("now", [False, True])
def test_workers_finish_their_tasks_unless_they_are_stopped_now(daemon, tmp_path, now):
    directory = tmp_path / "files"
    directory.mkdir()
    daemon.start("--workers", "1")
    loader = PrefetchLoader(Writing(str(directory), 0.7), batch_size=1, buffer=4, stream="writing")
    until(lambda: list(directory.glob("*.begun")), "a sample is being made")
    worker = stream_when(daemon, "writing", lambda stream: stream["workers"])["workers"][0]["pid"]
    until(lambda: len(list(directory.glob("*.begun"))) > len(list(directory.glob("*.done"))), "one is under way")
    daemon.command("stop", *(["--now"] if now else []))
    until(lambda: not psutil.pid_exists(worker), "the worker is gone")
    begun, done = (len(list(directory.glob(f"*.{what}"))) for what in ("begun", "done"))
    assert begun - done == (1 if now else 0)
    loader.close()
