"""Twenty situations with real processes and a known truth: the verdict names it, and its remedy brings what was said.

Nothing may run beside: what a machine lacks is what is measured. Streams whose tasks and trainers only sleep share a
daemon, and are looked at together.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

from prefetchd.status.snapshot import read_report
from prefetchd.status.status_object import status_object
from tests.scenario.waiting import DEADLINE_S, until, worker_pids
from tests.timed.situations import DirectReads, Samples, SlowCollate, SlowStart, evenly, in_bursts

MEASURED_S = 7.0
"""The time that a verdict is about; the first seconds of a stream are not."""
TOLERANCE = 0.2


def streams(daemon) -> dict[str, dict[str, Any]]:
    """By name, what status says of each; and of the CPUs, for who reads why a test has failed."""
    found = status_object(read_report(daemon.paths))
    return {each["name"]: each | {"load": found["load"]} for each in found.get("streams", [])}


@dataclasses.dataclass
class Run:
    """A stream and its trainer: what the loader is made with, and what the trainer sleeps after each step."""

    dataset: Dataset[torch.Tensor]
    pause_s: Callable[[int], float]
    options: dict[str, Any]

    def with_options(self, **changes: Any) -> Run:
        return Run(self.dataset, self.pause_s, self.options | changes)


def run(dataset: Samples, pause_s: Callable[[int], float], **options: Any) -> Run:
    return Run(dataset, pause_s, {"batch_size": 4, "buffer": 16, "num_workers": 2} | options)


@contextlib.contextmanager
def trained(runs: dict[str, Run]) -> Iterator[None]:
    """Each stream has its trainer, a thread, until the end."""
    ends = threading.Event()
    failures: list[BaseException] = []

    def train(name: str, one: Run) -> None:
        try:
            with PrefetchLoader(one.dataset, stream=name, **one.options) as loader:
                for step, _ in enumerate(loader):
                    if ends.wait(one.pause_s(step)):
                        return
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=train, args=each) for each in runs.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join(DEADLINE_S)
        # Also when something was waited for in vain: this is why.
        assert not failures, failures


def judged(daemon, runs: dict[str, Run], measured_s: float = MEASURED_S) -> dict[str, dict[str, Any]]:
    """What status says of each stream, once all of them have run for so long."""

    def all_are_measured() -> dict[str, dict[str, Any]] | None:
        found = streams(daemon)
        known = all((found.get(name) or {}).get("recent") for name in runs)
        return found if known and all(found[name]["recent"]["over_s"] > measured_s for name in runs) else None

    with trained(runs):
        return until(all_are_measured, "all streams have run for long enough")


def why(*found: dict[str, Any]) -> str:
    return "\n".join(f"{each['verdict']} {each['recent']} {each['load']}" for each in found)


def rate_of(stream: dict[str, Any]) -> float:
    """What its trainer gets."""
    return stream["recent"]["consumed_batches_per_s"]


def as_said(stream: dict[str, Any]) -> Any:
    return pytest.approx(stream["verdict"]["expected_batches_per_s"], rel=TOLERANCE)


ROUNDS = 3
"""A machine that has other work lacks CPUs, and is told so: what holds in one round was not the verdict's fault in the
others."""


def in_one_round(test: Callable[..., None]) -> Callable[..., None]:
    """Gives the test another try, with another daemon, where the machine had other work."""

    @functools.wraps(test)
    def tried(daemon: Any, **fixtures: Any) -> None:
        for left in reversed(range(ROUNDS)):
            try:
                test(daemon=daemon, **fixtures)
                return
            except AssertionError:
                if not left:
                    raise
                daemon.command("stop")

    return tried


SLEEPING = {
    "trainer": (run(Samples(0.001), evenly(0.1)), "trainer"),
    # 0.32 s of sleep a batch: two workers make 6 batches/s, and 12 are wanted.
    "waiting": (run(Samples(0.08), evenly(0.08)), "waiting"),
    "waiting, always": (run(Samples(0.04), evenly(0.0)), "waiting"),
    "collate": (run(Samples(), evenly(0.06), collate_fn=SlowCollate(0.2)), "collate"),
    "slow samples": (run(Samples(0.002, seldom_s=1.0, every=160), evenly(0.05), buffer=4), "slow samples"),
    "buffer": (run(Samples(0.01), in_bursts(0.005, 1.0, 20), buffer=4), "buffer"),
}


@in_one_round
def test_streams_that_sleep(daemon):
    """Of six streams each has a limit of its own, and five remedies are taken."""
    runs = {name: each for name, (each, _) in SLEEPING.items()}
    before = judged(daemon, runs)
    assert {name: before[name]["verdict"]["limit"] for name in runs} == {
        name: limit for name, (_, limit) in SLEEPING.items()
    }, {name: before[name]["verdict"]["text"] for name in runs}
    # Its trainer takes 0.08 s a batch: what perfect loading would bring is known.
    perfect = rate_of(before["waiting"]) * before["waiting"]["verdict"]["perfect_speedup"]
    assert perfect == pytest.approx(1 / 0.08, rel=TOLERANCE), before["waiting"]["verdict"]
    applied = {
        name: runs[name].with_options(num_workers=before[name]["verdict"]["workers_wanted"])
        for name in ("waiting", "waiting, always", "collate")
    }
    wanted = before["slow samples"]["verdict"]["buffer_batches_wanted"]
    applied["slow samples"] = runs["slow samples"].with_options(buffer=wanted)
    wanted = before["buffer"]["verdict"]["buffer_batches_wanted"]
    applied["buffer"] = runs["buffer"].with_options(buffer=wanted)
    daemon.command("stop")
    after = judged(daemon, applied)
    for name in ("waiting", "waiting, always", "collate", "slow samples", "buffer"):
        assert rate_of(after[name]) == as_said(before[name]), (name, before[name]["verdict"], after[name]["verdict"])
    for name in ("waiting", "collate"):
        # Of these few seconds the beginning, with an empty ring, is a part.
        assert after[name]["verdict"]["stalled_share"] < 0.1, after[name]["verdict"]


@in_one_round
def test_one_lock_for_all_samples_is_found_once_the_number_of_workers_has_changed(daemon, tmp_path):
    one = run(Samples(0.02, lock=str(tmp_path / "lock")), evenly(0.02), stream="one lock")
    one.options.pop("stream")
    first = judged(daemon, {"one lock": one}, measured_s=5.0)["one lock"]
    # Nobody can know yet.
    assert first["verdict"]["limit"] == "waiting", first["verdict"]
    assert "unless they wait for each other" in first["verdict"]["text"]
    more = one.with_options(num_workers=4)
    second = judged(daemon, {"one lock": more})["one lock"]
    assert second["verdict"]["limit"] == "does not scale", (second["verdict"], second["paces"])
    assert rate_of(second) == pytest.approx(rate_of(first), rel=TOLERANCE)


FILE_BYTES, READ_BYTES = 256 << 20, 32 << 20


@in_one_round
def test_of_a_dataset_that_waits_for_the_disk_not_more_than_twice_as_many_workers_are_tried(daemon, tmp_path):
    """Found as advice to have 24 workers on one disk."""
    path = tmp_path / "data"
    with open(path, "wb") as file:
        for _ in range(FILE_BYTES >> 20):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system knows no reads past the cache")
    dataset = DirectReads(str(path), READ_BYTES)
    began_s, ran_s = time.monotonic(), time.thread_time()
    for index in range(16):
        dataset[index]
    if time.thread_time() - ran_s > 0.3 * (time.monotonic() - began_s):
        pytest.skip("there is no disk that one waits for")
    dataset.room = None
    one = Run(dataset, evenly(0.0), {"batch_size": 4, "buffer": 16, "num_workers": 2})
    found = judged(daemon, {"disk": one})["disk"]
    assert found["verdict"]["limit"] == "waiting", why(found)
    assert "for the disk" in found["verdict"]["text"]
    assert found["verdict"]["workers_wanted"] <= 4


@in_one_round
def test_other_streams_are_named_only_as_long_as_they_are_there(daemon):
    """Two workers for all. One stream keeps them busy, another one gets too little; when the first is gone that has its
    own limit."""
    daemon.start("--workers", "2")
    greedy = run(Samples(0.05), evenly(0.0), num_workers=0)
    beside = run(Samples(0.05), evenly(0.15), num_workers=0)
    found = judged(daemon, {"greedy": greedy, "beside": beside})["beside"]
    assert found["verdict"]["limit"] == "other streams", found["verdict"]

    def is_alone() -> dict[str, Any] | None:
        stream = streams(daemon)["beside"]
        return stream if stream["verdict"]["limit"] not in ("none", "other streams") else None

    with trained({"beside": beside}):
        alone = until(is_alone, "the other one counts no more")
    assert alone["verdict"]["limit"] in ("trainer", "waiting"), alone["verdict"]


@in_one_round
@pytest.mark.filterwarnings("ignore:num_workers=8, but the daemon allows 2")
def test_whoever_bounds_the_workers_is_named(daemon):
    daemon.start("--workers", "2")
    found = judged(daemon, {"bound": run(Samples(0.04), evenly(0.03), num_workers=8)})["bound"]
    assert found["verdict"]["limit"] == "waiting"
    assert found["verdict"]["text"].endswith("workers would keep up, but `[daemon] workers` or --workers allow 2")


def test_paused_failed_and_left_streams_are_not_judged(daemon):
    one = run(Samples(0.001), evenly(0.1))
    with PrefetchLoader(one.dataset, stream="left", **one.options) as loader:
        next(iter(loader))
    with trained({"paused": one}):
        until(lambda: (streams(daemon).get("paused") or {}).get("consumed_batches"), "it is consumed")
        daemon.command("pause", "paused")
        paused = until(lambda: (each := streams(daemon)["paused"])["paused"] and each, "it is paused")
        assert paused["verdict"]["text"].startswith("paused: nothing is filled")
        assert streams(daemon)["left"]["verdict"]["text"] == "nobody consumes it"


@pytest.fixture
def followed(daemon, tmp_path):
    """followed(NAME, sleeps_s, step_s, ...) declares streams, each followed by a progress file that a thread goes on
    with; yields what waits until all are measured."""
    ends = threading.Event()
    threads = []

    def consume(path: str, step_s: float, directory: str) -> None:
        step = 0
        while not ends.wait(step_s):
            # As a consumer of files does: it waits for the batch, then works on it.
            name = f"epoch000000-batch{step:08d}.safetensors"
            while not os.path.exists(os.path.join(directory, name)):
                if ends.wait(0.002):
                    return
            step += 1
            with open(f"{path}.new", "w") as file:
                file.write(f"0\n{step}\n")
            os.replace(f"{path}.new", path)

    def declare(**pairs: tuple[float, float]) -> None:
        config = tmp_path / "streams.toml"
        text = ""
        for name, (sleeps_s, step_s) in pairs.items():
            directory, path = tmp_path / name, tmp_path / f"{name}.progress"
            directory.mkdir(mode=0o700)
            text += (
                f'[streams.{name}]\ndataset = "tests.timed.situations:samples"\nbatch_size = 4\nworkers = 2\n'
                f'dataset_args = {{sleeps_s = {sleeps_s}}}\nbuffer = 16\nstore = {{files = "{directory}"}}\n'
                f'progress = {{file = "{path}"}}\n'
            )
            threads.append(threading.Thread(target=consume, args=(str(path), step_s, str(directory))))
        config.write_text(text)
        daemon.start("--config", str(config))
        for thread in threads:
            thread.start()

    yield declare
    ends.set()
    for thread in threads:
        thread.join(DEADLINE_S)


def test_streams_that_a_progress_file_follows(daemon, followed):
    followed(ahead=(0.001, 0.1), late=(0.04, 0.04), idle=(0.001, 1000.0))

    def are_measured() -> dict[str, dict[str, Any]] | None:
        found = streams(daemon)
        known = all((found.get(name) or {}).get("recent") for name in ("ahead", "late"))
        return found if known and found["late"]["recent"]["consumer_s"] > MEASURED_S else None

    found = until(are_measured, "both have gone on for long enough")
    ahead, late = found["ahead"], found["late"]
    assert ahead["verdict"]["limit"] == "trainer", ahead["verdict"]
    # Fifteen are ready beside the one that it is at, and it takes ten a second.
    ready_s = ahead["ring"]["ready"] / ahead["ring"]["slots_a_batch"] * 0.1
    assert ahead["runway_s"] == pytest.approx(ready_s, rel=TOLERANCE)
    assert late["verdict"]["limit"] == "waiting", late["verdict"]
    # 80 ms a batch by two workers, of which the consumer is busy for 40.
    assert rate_of(late) == pytest.approx(12.5, rel=TOLERANCE)
    assert late["verdict"]["text"].startswith("late: ")
    assert found["idle"]["verdict"]["text"] == "its progress file has not told yet that anybody goes on"


@in_one_round
def test_workers_that_start_again_are_not_told_to_have_larger_batches(daemon):
    one = run(Samples(0.002), evenly(0.02), buffer=4, worker_init_fn=SlowStart(2.0))

    def is_starting() -> dict[str, Any] | None:
        stream = streams(daemon)["starting"]
        return stream if stream["verdict"]["limit"] not in ("none", "trainer") else None

    with trained({"starting": one}):
        until(
            lambda: (each := streams(daemon).get("starting")) and each["recent"] and each["consumed_batches"] and each,
            "it is consumed",
        )
        for pid in worker_pids(daemon, "starting"):
            os.kill(pid, signal.SIGKILL)
        found = until(is_starting, "its trainer waits")
    assert found["verdict"]["limit"] == "starting", why(found)


# --- what computes: each alone ---


@in_one_round
def test_a_dataset_that_computes_is_told_from_one_that_waits_and_another_worker_helps(daemon):
    one = run(Samples(computes_s=0.01), evenly(0.03), num_workers=1)
    before = judged(daemon, {"computes": one})["computes"]
    verdict = before["verdict"]
    assert (verdict["limit"], verdict["workers_wanted"]) == ("dataset", 2), why(before)
    daemon.command("stop")
    after = judged(daemon, {"computes": one.with_options(num_workers=2)})["computes"]
    assert rate_of(after) == as_said(before), why(before, after)


@in_one_round
def test_more_workers_than_cpus_are_not_advised_where_they_compute(daemon):
    cpus = len(os.sched_getaffinity(0))
    found = judged(daemon, {"cpu": run(Samples(computes_s=0.01), evenly(0.0), num_workers=cpus)})["cpu"]
    assert (found["verdict"]["limit"], found["verdict"]["workers_wanted"]) == ("cpu", None), why(found)


@contextlib.contextmanager
def burning(processes: int) -> Iterator[None]:
    children = [subprocess.Popen([sys.executable, "-Sc", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for child in children:
            child.kill()
            child.wait()


@in_one_round
def test_a_foreign_load_is_told_and_what_would_be_without_it(daemon):
    cpus = len(os.sched_getaffinity(0))
    one = run(Samples(computes_s=0.01), evenly(0.0), num_workers=cpus)
    with burning(2 * cpus):
        before = judged(daemon, {"burnt": one})["burnt"]
    assert before["verdict"]["limit"] == "foreign load", why(before)
    daemon.command("stop")
    after = judged(daemon, {"burnt": one})["burnt"]
    assert rate_of(after) == as_said(before), why(before, after)


@in_one_round
def test_a_trainer_whose_threads_have_the_cpus_is_told_to_have_fewer(daemon):
    cpus = len(os.sched_getaffinity(0))
    ends = threading.Event()
    data = bytes(1 << 22)

    def burn() -> None:
        while not ends.is_set():
            hashlib.sha256(data)

    threads = [threading.Thread(target=burn) for _ in range(2 * cpus)]
    for thread in threads:
        thread.start()
    try:
        found = judged(daemon, {"threads": run(Samples(computes_s=0.01), evenly(0.0), num_workers=cpus)})["threads"]
    finally:
        ends.set()
        for thread in threads:
            thread.join(DEADLINE_S)
    assert found["verdict"]["limit"] == "cpu", why(found)
    assert "Fewer threads in the trainer" in found["verdict"]["text"]
