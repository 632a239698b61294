"""Daemon and trainer in namespaces of their own, as containers have them: mounts, IPC, host name and network; with one
PID namespace or two."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import Daemon
from tests.scenario.waiting import stream_when, until

pytestmark = pytest.mark.executed

APART = ["--mount", "--ipc", "--uts", "--net", "--propagation", "private"]
OWN_PIDS = ["--pid", "--fork", "--mount-proc", "--kill-child"]
TRAIN = Path(__file__).resolve().parents[2] / "docker" / "train.py"

TRAINER = """
import sys
from prefetchd_client import PrefetchLoader
class Rows:
    def __len__(self):
        return 400
    def __getitem__(self, index):
        return float(index)
with PrefetchLoader(Rows(), batch_size=4, buffer=8, stream="train", num_workers=2) as loader:
    print("right", [batch.tolist() for batch in loader] == [[4.0 * k + row for row in range(4)] for k in range(100)])
"""


def contained(*more: str) -> list[str]:
    """The command that runs another one in namespaces of its own. Skips the test where none may be made."""
    for rights in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *rights, *APART, *more]
        if shutil.which("unshare") and not subprocess.run([*command, "true"], capture_output=True).returncode:
            return command
    pytest.skip("no right to make namespaces")


@pytest.fixture
def contained_daemon(daemon):
    """A daemon in namespaces of its own; the socket's directory and /dev/shm are shared, as volumes are."""
    command = [*contained(), sys.executable, "-m", "prefetchd", "run"]
    process = subprocess.Popen(command, env=daemon.environment, stderr=subprocess.DEVNULL)
    try:
        until(lambda: daemon.command("status", check=False).returncode == 0, "it serves")
        yield daemon
    finally:
        daemon.command("stop", check=False)
        process.wait(30)


def train(daemon: Daemon, *more: str, code: str = TRAINER, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*contained(*more), sys.executable, "-c", code],
        env={**daemon.environment, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def stream(daemon: Daemon) -> dict:
    (found,) = json.loads(daemon.command("status", "--json", check=False).stdout)["streams"]
    return found


def test_a_trainer_in_another_container_has_its_batches_and_the_next_one_finds_the_ring(contained_daemon):
    done = train(contained_daemon)
    assert (done.returncode, done.stdout) == (0, "right True\n"), done.stderr
    found = stream_when(contained_daemon, "train", lambda it: not it["consumers"], "its trainer is gone")
    assert found["carried_by_fork"] == "", "its program was taken: the daemon can go on without a trainer"
    done = train(contained_daemon)
    assert (done.returncode, done.stdout) == (0, "right True\n"), done.stderr
    assert stream(contained_daemon)["produced_batches"] > found["produced_batches"], "it is the same stream"


def test_what_is_not_forked_is_made_where_the_daemon_is(contained_daemon):
    done = train(contained_daemon, PREFETCHD_START="exec")
    assert (done.returncode, done.stdout) == (0, "right True\n"), done.stderr


def test_a_trainer_in_another_pid_namespace_is_told_so_and_what_to_turn(contained_daemon):
    done = train(contained_daemon, *OWN_PIDS)
    assert done.returncode == 1
    told = done.stderr.splitlines()[-1]
    assert told.startswith("prefetchd.wire.errors.CallerError: this process is in another PID namespace than the ")
    assert "shareProcessNamespace: true" in told
    assert "PREFETCHD_START=exec" in told
    assert json.loads(contained_daemon.command("status", "--json").stdout)["streams"] == []


def test_without_forks_another_pid_namespace_will_do(contained_daemon):
    done = train(contained_daemon, *OWN_PIDS, PREFETCHD_START="exec")
    assert (done.returncode, done.stdout) == (0, "right True\n"), done.stderr


def test_the_program_of_the_examples_runs(contained_daemon):
    done = train(contained_daemon, code=TRAIN.read_text())
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["epoch 0", "epoch 1", "epoch 2"]
