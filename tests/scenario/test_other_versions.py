"""Daemons, clients and rings of different versions meet: who cannot talk to whom is told so, with what to do; nothing
is killed for it, and nothing is taken over by those who do not understand it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from prefetchd_client import PrefetchLoader
from prefetchd_client.session import handshake

from prefetchd.status.snapshot import read_report
from prefetchd.wire import status_layout
from prefetchd.wire.errors import DaemonRefusedError
from prefetchd.wire.messages import PROTOCOL_VERSION
from prefetchd.wire.segment_layout import LAYOUT_VERSION
from tests.scenario.datasets import Numbers
from tests.scenario.foreground import ENDS_WITHIN_S
from tests.scenario.waiting import is_gone, until

OTHER = PROTOCOL_VERSION + 1
VERSION_OFFSET = 8

# A daemon as another version of prefetchd would be, as far as can be told from outside.
OTHER_DAEMON = f"""
import sys
# What is there already may have taken the numbers over.
for name in [name for name in sys.modules if name.partition(".")[0] == "prefetchd"]:
    del sys.modules[name]
import prefetchd
prefetchd.__version__ = "9.9.9"
from prefetchd.wire import messages, status_layout
messages.PROTOCOL_VERSION = {OTHER}
STATUS
from prefetchd.cli.main import main
sys.argv = ["prefetchd", "run"]
main()
"""


def _rings(daemon) -> list[str]:
    return [name for name in daemon.segments() if "-ring-" in name]


def _answers(daemon) -> bool:
    """A killed daemon leaves its socket, where nobody listens."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(str(daemon.socket))
        return True
    return False


@contextlib.contextmanager
def other_daemon(daemon, status: str = ""):
    """One of another version, on the socket where trainers look."""
    with daemon.socket.with_name("other.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", OTHER_DAEMON.replace("STATUS", status)], env=daemon.environment, stderr=log
        )
    try:
        until(lambda: _answers(daemon), "it serves")
        yield process
    finally:
        process.terminate()
        process.wait(ENDS_WITHIN_S)


def test_a_new_client_is_told_to_stop_the_daemon_of_another_version(daemon):
    """The daemon is not killed for it: others may use it."""
    with other_daemon(daemon) as process:
        with pytest.raises(DaemonRefusedError) as caught:
            PrefetchLoader(Numbers(8), batch_size=4)
        assert str(caught.value) == (
            f"this daemon (prefetchd 9.9.9) speaks protocol {OTHER}, the client {PROTOCOL_VERSION}: stop it with "
            "`prefetchd stop` and let the client start its own"
        )
        assert process.poll() is None
        assert not [name for name in daemon.segments() if "status" not in name], "the client has left nothing"
        assert daemon.command("status").returncode == 0
        assert daemon.command("stop").stdout == "stopped\n", "a daemon of any version can be stopped"
        assert process.wait(ENDS_WITHIN_S) == 0
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=8) as loader:
        assert len(list(loader)) == 10


def test_an_old_client_is_told_the_same_by_a_new_daemon(shared_daemon, monkeypatch):
    shared_daemon.start()
    monkeypatch.setattr(handshake, "PROTOCOL_VERSION", PROTOCOL_VERSION - 1)
    with pytest.raises(
        DaemonRefusedError, match=f"speaks protocol {PROTOCOL_VERSION}, the client {PROTOCOL_VERSION - 1}"
    ):
        PrefetchLoader(Numbers(8), batch_size=4)
    assert not [name for name in shared_daemon.segments() if "status" not in name]


def test_a_second_daemon_of_another_version_leaves_the_first_alone(shared_daemon):
    shared_daemon.start()
    pid = shared_daemon.pid
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8) as loader:
        iterator = iter(loader)
        next(iterator)
        before = _rings(shared_daemon)
        code = OTHER_DAEMON.replace("STATUS", "")
        second = subprocess.run(
            [sys.executable, "-c", code], env=shared_daemon.environment, capture_output=True, text=True, check=False
        )
        assert second.returncode == 1
        assert second.stderr == f"Error: a daemon serves {shared_daemon.socket} already; see `prefetchd status`\n"
        assert _rings(shared_daemon) == before
        assert len(list(iterator)) == 99
    assert shared_daemon.pid == pid


def kill(daemon) -> None:
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")


def test_a_trainer_whose_daemon_is_replaced_by_one_of_another_version_is_told(daemon):
    daemon.start()
    with PrefetchLoader(Numbers(4000), batch_size=4, buffer=8) as loader:
        iterator = iter(loader)
        kept, _ = next(iterator)
        kill(daemon)
        with other_daemon(daemon):
            with pytest.raises(DaemonRefusedError, match=f"speaks protocol {OTHER}.*prefetchd stop"):
                list(iterator)
            assert kept[:, 0].tolist() == [0, 1, 2, 3]


def test_a_ring_of_another_layout_is_not_adopted_and_its_trainer_goes_on(daemon):
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="old") as loader:
        iterator = iter(loader)
        kept, _ = next(iterator)
        kill(daemon)
        (name,) = (name for name in daemon.segments() if "-ring-" in name)
        path = Path("/dev/shm", name)
        with path.open("rb+") as file:
            file.seek(VERSION_OFFSET)
            assert file.read(4) == struct.pack("<I", LAYOUT_VERSION), "the version is found there"
            file.seek(VERSION_OFFSET)
            file.write(struct.pack("<I", LAYOUT_VERSION + 1))
        daemon.start()
        assert not path.exists()
        (line,) = (line for line in daemon.paths.log.read_text().splitlines() if "ring not adopted" in line)
        assert name in line
        assert "version" in line
        assert [index[0].item() for _, index in iterator] == [4 * step for step in range(1, 100)]
        assert kept[:, 0].tolist() == [0, 1, 2, 3]


def test_status_of_a_daemon_whose_status_is_of_another_version_says_so(daemon):
    status = f"status_layout.LAYOUT_VERSION = {status_layout.LAYOUT_VERSION + 1}"
    with other_daemon(daemon, status):
        done = daemon.command("status", check=False)
        assert done.returncode == 1
        assert f"version {status_layout.LAYOUT_VERSION + 1}" in done.stderr
        assert "prefetchd stop" in done.stderr
        assert daemon.command("stop").stdout == "stopped\n"
    daemon.start()
    assert read_report(daemon.paths).state == "running"
