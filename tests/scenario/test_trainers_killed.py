"""A trainer is killed while its fork is at work: who goes on, with which batches, and what the fork does not keep."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed
from prefetchd_client import PrefetchLoader

from tests.scenario.gated_datasets import Gated
from tests.scenario.waiting import is_gone, stream_when, until

ROOT = Path(__file__).parents[2]

TRAINER = """
import os, sys
from pathlib import Path
from prefetchd_client import PrefetchLoader
from tests.scenario import gated_datasets
kind, gate = sys.argv[1:]
loader = PrefetchLoader(getattr(gated_datasets, kind)(Path(gate)), 4, shuffle=True, seed=3, num_workers=2, stream="one")
next(iter(loader))
print("begun", flush=True)
sys.stdin.read()
"""
LISTENING = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
"""
STORE = """
import torch.distributed
store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
"""


@contextlib.contextmanager
def trainer(daemon, kind: str, gate: Path, before: str = ""):
    """A trainer that has its first batch, by now, and is killed at the end if it has not been; `before` runs first."""
    environment = daemon.environment | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", before + TRAINER, kind, str(gate)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        try:
            yield made
        finally:
            made.kill()


@pytest.fixture
def gate(tmp_path):
    """Opened at the end at the latest: who waits there is to end."""
    path = tmp_path / "gate"
    yield path
    path.touch()


def first_epochs(gate: Path, stream: str, **options) -> list[torch.Tensor]:
    with PrefetchLoader(Gated(gate), 4, shuffle=True, seed=3, num_workers=2, stream=stream, **options) as loader:
        return [batch.clone() for _ in range(2) for batch in loader]


def test_an_executed_zygote_takes_over_and_changes_no_byte_and_no_order(daemon, gate):
    daemon.start()
    with trainer(daemon, "Gated", gate) as killed:
        assert killed.stdout.readline() == "begun\n"
        stream_when(daemon, "one", lambda stream: stream["zygote"] == "fork", "it is forked")
        (fork,) = [each.pid for each in daemon.processes() if each.name() == "prefetchd-zyg"]
        killed.kill()
        killed.wait()
        left = stream_when(daemon, "one", lambda stream: stream["zygote"] == "executed", "another has taken over")
    gate.touch()
    until(lambda: is_gone(fork), "it has the dead trainer's memory no longer")
    after = first_epochs(gate, "one")
    assert stream_when(daemon, "one")["fingerprint"] == left["fingerprint"], "it is the same stream"
    reference = first_epochs(gate, "another", fresh=True)
    assert len(after) == 32
    assert all(map(torch.equal, after, reference))


@pytest.mark.parametrize("holds", [LISTENING, STORE], ids=["a listening socket", "MASTER_PORT"])
def test_a_port_of_the_trainer_is_free_while_its_fork_lives(daemon, gate, holds):
    daemon.start()
    with trainer(daemon, "ForkedOnly", gate, holds) as killed:
        port = int(killed.stdout.readline())
        assert killed.stdout.readline() == "begun\n"
        with pytest.raises(OSError, match="in use"):
            _listen(port).close()
        killed.kill()
        killed.wait()
        zygotes = [each.pid for each in daemon.processes() if each.name() == "prefetchd-zyg"]
        until(lambda: is_gone(killed.pid), "it is dead")
        # As a later run does.
        store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        assert store.port == port
        alive = [pid for pid in zygotes if not is_gone(pid)]
        assert alive, "the fork has samples to wait for"


def _listen(port: int) -> socket.socket:
    # As c10d binds: what has been closed just now is no obstacle.
    return socket.create_server(("127.0.0.1", port))
