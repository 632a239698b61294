"""What hangs is named: who it is, at which sample, for how long, where in the code, and what to turn."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.wire.errors import TaskTimeoutError
from tests.conftest import daemon_aside
from tests.scenario.datasets import Numbers
from tests.scenario.stuck_datasets import NeverLoaded, Stuck, asleep, in_a_lock, in_c_code, lock_of_another_thread
from tests.scenario.waiting import stream_when, until

AFTER_S = 0.5
# A trainer and an executed zygote import torch before anything is stuck; beside other work that took half a minute.
STARTED_AND_NAMED_S = 90.0


@pytest.fixture(scope="module")
def impatient(tmp_path_factory):
    """A daemon that names waits soon."""
    with daemon_aside(tmp_path_factory.mktemp("daemon")) as found:
        found.start("--name-waits-after", str(AFTER_S), "--workers", "2")
        yield found


@contextlib.contextmanager
def trainer(daemon, kind: str, stream: str, **variables: str):
    """A trainer that gets stuck; said() is what it has said on its stderr by now."""
    path = daemon.socket.with_name(f"{stream}.err")
    with path.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenario.stuck_datasets", kind, stream],
            env=daemon.environment | variables,
            stderr=stderr,
        )
    try:
        yield lambda: path.read_text()
    finally:
        process.kill()
        process.wait()


def named(said, cause: str, times: int = 1) -> list[str]:
    """The first lines of what was said of waits with this cause, once there are so many."""

    def found() -> list[str]:
        lines = [line for line in said().splitlines() if "waiting for epoch" in line and cause in line]
        return lines if len(lines) >= times else []

    return until(found, f"{cause} is named {times} times", STARTED_AND_NAMED_S)


def pid_in(line: str) -> int:
    return int(line.split("(pid ")[1].split(")")[0])


def logged(daemon, stream: str) -> list[dict]:
    lines = map(json.loads, daemon.paths.log.read_text().splitlines())
    return [line for line in lines if line["event"] == "wait" and line["stream"] == stream]


@pytest.mark.parametrize("kind", ["asleep", "in_a_lock", "in_c_code"])
def test_a_worker_that_is_stuck_in_a_sample(impatient, kind):
    stream = f"stuck {kind}"
    with trainer(impatient, kind, stream) as said:
        first, *_ = named(said, "has been at dataset[5], epoch 0, step 1 for ", 2)
        assert f"epoch 0 step 1 of stream {stream!r}" in first
        assert psutil.Process(pid_in(first)).name().startswith("prefetchd-w"), "it lives, and is the one"

        def told():
            after = said().partition(first)[2].splitlines()
            found = [line for line in after if line.startswith("prefetchd:     ")]
            return found if len(found) > 1 else None

        # On a busy machine the worker's answer may come too late for the first of these.
        frames = until(told, "where it is stuck is told")
        assert f"stuck_datasets.py:{line_of(kind)} in {kind}" in frames[0]
        assert "in __getitem__" in frames[1]
        assert not any("prefetchd/workers" in frame for frame in frames)
        assert "timeout=" in said()
        assert "num_workers=" in said()
        assert ("PREFETCHD_START=exec" in said()) == (kind != "in_c_code"), "what sleeps may wait for a lock"
        last = logged(impatient, stream)[-1]
        assert f"in {kind}\n" in last["stacks"]
        assert "prefetchd/workers" in last["stacks"], "the log has all of it"


def test_a_lock_that_another_thread_held_is_free_in_an_interpreter_of_their_own(impatient):
    """As the word on it says."""
    with trainer(impatient, "in_a_lock", "free lock", PREFETCHD_START="exec") as said:
        until(lambda: "batch of 20" in said(), "all batches come")


def line_of(kind: str) -> int:
    """Where in stuck_datasets that one waits."""
    text = Path(__file__).with_name("stuck_datasets.py").read_text().splitlines()
    what = {"asleep": "time.sleep(60)", "in_a_lock": "HELD.acquire()", "in_c_code": "sum(iter(int, 1))"}[kind]
    return max(number for number, line in enumerate(text, 1) if line.strip() == what)


def test_a_worker_that_is_stuck_in_collate_fn(impatient):
    with trainer(impatient, "collate", "stuck collate") as said:
        named(said, "has been at collate_fn, epoch 0, step 1 for ")
        assert "in collate_for_ever" in said()


def test_a_worker_that_is_stuck_in_worker_init_fn(impatient):
    with trainer(impatient, "never_initialised", "stuck init") as said:
        named(said, "its worker is starting, for ")
        until(lambda: "in never_initialised" in said(), "where it is")
        assert "worker_init_fn" in said()


def test_a_worker_that_imports_for_long(impatient, tmp_path, monkeypatch):
    """Found as a message that blamed worker_init_fn while matplotlib was being imported."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(60)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with trainer(impatient, "imports_for_long", "stuck import", PYTHONPATH=path) as said:
        named(said, "its worker is starting, for ")
        module = f"at importing {tmp_path}/slow_to_import.py"
        # The next one has begun: all of the one before is there.
        until(lambda: "waiting for epoch" in said().partition(module)[2], "what it imports")
        first, *messages = said().split("waiting for epoch")
        assert "worker_init_fn" not in first
        (told, *_) = [message for message in messages if module in message]
        assert "import it in the script" in told
        assert "worker_init_fn" not in told, "it is not blamed for what the module does"
        assert "what worker_init_fn does" not in said(), "nor before anybody has looked"
        assert "has been importing for " in told
        (worker,) = stream_when(impatient, "stuck import")["workers"]
        assert worker["phase"] == "importing"


@pytest.mark.executed
def test_an_executed_worker_that_imports_for_long(tmp_path):
    """It imports the dataset's module before it has come to worker_init_fn."""
    (tmp_path / "slow_in_workers.py").write_text(SLOW_IN_WORKERS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    with daemon_aside(tmp_path) as daemon:
        daemon.start("--name-waits-after", str(AFTER_S))
        with trainer(daemon, "slow_in_workers", "slow worker", PYTHONPATH=path, PREFETCHD_START="exec") as said:
            # Where imports take long the zygote, which has the module to import first, is named at it too.
            its, module = "has been importing for ", f"at importing {tmp_path}/slow_in_workers.py"
            told = until(lambda: [each for each in named(said, its) if module in each], its, STARTED_AND_NAMED_S)
            # The next one has begun: all of this one is there.
            until(lambda: "waiting for epoch" in said().partition(told[0])[2], "what it imports")
            assert "worker_init_fn" not in said().partition(told[0])[2].partition("waiting for epoch")[0]
            (worker,) = stream_when(daemon, "slow worker")["workers"]
            assert worker["phase"] == "importing"


SLOW_IN_WORKERS = """
import sys, threading, time
from prefetchd.processes.bootstrap import WORKER
from torch.utils.data import Dataset

# No fork survives it: workers import all of this themselves.
threading.Thread(target=threading.Event().wait, daemon=True).start()
if WORKER in sys.argv:
    time.sleep(60)

class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index
"""


def test_a_dataset_that_loads_for_ever(impatient):
    with trainer(impatient, "never_loaded", "stuck load", PREFETCHD_START="exec") as said:
        named(said, "its zygote imports modules and loads the dataset, for ")
        until(lambda: "in __setstate__" in said(), "where it is")


def test_a_worker_that_is_stopped(impatient):
    with trainer(impatient, "asleep", "stopped") as said:
        pid = pid_in(named(said, "has been at dataset[5]")[0])
        os.kill(pid, signal.SIGSTOP)
        until(lambda: f"It is stopped (state T): `kill -CONT {pid}` lets it go on" in said(), "it is told")
        os.kill(pid, signal.SIGCONT)


def test_workers_that_are_all_busy_with_another_stream(tmp_path):
    with daemon_aside(tmp_path) as daemon:
        daemon.start("--name-waits-after", str(AFTER_S), "--workers", "1")
        with trainer(daemon, "asleep", "hog") as said:
            named(said, "has been at dataset[5]")
            with trainer(daemon, "nothing", "starved") as starving:
                cause = "1 workers may be busy at once, and all are, with other streams: 'hog' (1)"
                (first, *_) = named(starving, cause)
                assert "dataset[5], epoch 0, step 1" in first
                assert "--workers" in starving()


# --- timeout ---


@pytest.mark.parametrize("wait", [asleep, in_c_code])
def test_with_a_timeout_the_task_is_killed_and_its_batch_is_an_error_that_says_so(impatient, wait):
    stream = f"timeout {wait.__name__}"
    arguments = {"buffer": 6, "num_workers": 1, "timeout": 1.5, "stream": stream, "socket": str(impatient.socket)}
    with PrefetchLoader(Stuck(wait), 4, **arguments) as loader:
        iterator = iter(loader)
        # The start of the zygote counts as well: without a timeout it may take as long as this machine needs.
        loader.timeout = 0
        assert next(iterator).tolist() == [0, 1, 2, 3]
        loader.timeout = 1.5
        errors = []
        while not errors or not isinstance(errors[-1], TaskTimeoutError):
            with pytest.raises(RuntimeError) as caught:
                next(iterator)
            errors.append(caught.value)
        assert all(str(error).startswith("DataLoader timed out after 1.5 seconds: ") for error in errors)
        assert "dataset[5], epoch 0, step 1: not done within timeout=1.5 seconds" in str(errors[-1])
        name = wait.__name__
        assert re.search(
            rf"its worker was killed, at:\n    .*stuck_datasets.py:{line_of(name)} in {name}\n", str(errors[-1])
        )
        assert "Raise timeout=" in str(errors[-1])
        assert ("PREFETCHD_START=exec" in str(errors[-1])) == (wait is asleep), "what sleeps may wait for a lock"
        assert [batch.tolist() for batch in iterator] == [list(range(at, at + 4)) for at in range(8, 24, 4)]
        told = stream_when(impatient, stream)
        assert told["worker_deaths"] == told["failed_batches"]


@pytest.mark.parametrize("wait", [asleep, in_a_lock, in_c_code])
def test_the_first_error_of_a_timeout_says_where_the_worker_is(impatient, wait):
    """Before the daemon has ended the task: its own patience is longer here."""
    stream = f"first {wait.__name__}"
    arguments = {"buffer": 6, "num_workers": 1, "timeout": 600, "stream": stream, "socket": str(impatient.socket)}
    with lock_of_another_thread():
        loader = PrefetchLoader(Stuck(wait), 4, **arguments)
    with loader:
        iterator = iter(loader)
        assert next(iterator).tolist() == [0, 1, 2, 3]
        until(lambda: "dataset[5]" in str(_timeout(loader, iterator)), "the worker is at it")
        error = _timeout(loader, iterator)
        assert type(error) is RuntimeError
        told = str(error)
        assert told.startswith("DataLoader timed out after 0.3 seconds: worker ")
        assert "has been at dataset[5], epoch 0, step 1 for " in told
        assert f"stuck_datasets.py:{line_of(wait.__name__)} in {wait.__name__}\n" in told
        assert "Raise timeout=" in told
        assert "timeout= makes an error" not in told, "it has just made one"
        assert ("PREFETCHD_START=exec" in told) == (wait is not in_c_code), "what sleeps may wait for a lock"


def _timeout(loader, iterator) -> RuntimeError:
    loader.timeout = 0.3
    with pytest.raises(RuntimeError) as caught:
        next(iterator)
    return caught.value


def test_a_timeout_before_there_is_a_worker_says_what_is_waited_for(impatient, monkeypatch):
    monkeypatch.setenv("PREFETCHD_START", "exec")
    arguments = {"timeout": 0.3, "stream": "no worker", "socket": str(impatient.socket)}
    with PrefetchLoader(NeverLoaded(asleep), 4, **arguments) as loader:
        iterator = iter(loader)
        until(lambda: "in __setstate__" in str(_timeout(loader, iterator)), "what takes so long is told")


def test_with_a_timeout_nothing_else_is_killed(impatient):
    arguments = {"buffer": 6, "num_workers": 1, "timeout": 0.2, "stream": "in time", "socket": str(impatient.socket)}
    with PrefetchLoader(Numbers(400), 4, **arguments) as loader:
        iterator = iter(loader)
        until(lambda: _first(iterator), "the zygote is there")
        assert len(list(iterator)) == 99
        assert stream_when(impatient, "in time")["worker_deaths"] == 0


def _first(iterator):
    try:
        return next(iterator)
    except RuntimeError:
        return None
