"""What the bridge does where it does not reach a cluster: it says why, at once, and costs little."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from prefetchd.remote.bridge import Bridge
from prefetchd.wire.framing import enclose, receive_with_fds, send
from prefetchd.wire.messages import OpenBridge, Unreachable
from tests.unit.remote.programs import program_of


class Unloadable:
    """Cannot be loaded on any machine."""

    def __reduce__(self):
        return _no_module, ()


def _no_module():
    raise ModuleNotFoundError("No module named 'theirs'")


def refused(address: str, dataset: object, insecure: bool = False) -> Unreachable:
    """What the daemon is told by a bridge to a cluster that it cannot reach; the bridge has ended then."""
    daemon, own = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program_fd = program_of(dataset)
    with daemon, own:
        enclosed, fds = enclose(OpenBridge(b"", address, insecure))
        send(daemon, enclosed, [*fds, program_fd])
        os.close(program_fd)
        Bridge(own).serve()
        message, _ = receive_with_fds(daemon)
    assert isinstance(message, Unreachable)
    return message


def test_where_nobody_answers_the_program_is_not_even_loaded():
    told = refused("127.0.0.1:1", Unloadable())
    assert told == Unreachable("no Ray cluster answers at 127.0.0.1:1: Connection refused", is_final=False)


def test_a_program_that_cannot_be_loaded_here_is_not_tried_again(listening):
    told = refused(listening, Unloadable())
    assert told == Unreachable("ModuleNotFoundError: No module named 'theirs'", is_final=True)


@pytest.mark.parametrize(("address", "is_final"), [("10.0.0.1:6379", True), ("auto", False)])
def test_what_may_not_be_reached_is_final_unless_a_cluster_may_be_started_yet(address, is_final, monkeypatch, tmp_path):
    monkeypatch.setattr("prefetchd.wire.cluster_address._of_this_machine", lambda _: "10.0.0.1:6379")
    for variable in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_USE_TLS"):
        monkeypatch.delenv(variable, raising=False)
    told = refused(address, Unloadable())
    assert "RAY_AUTH_MODE=token" in told.reason
    assert told.is_final is is_final


@pytest.mark.executed
def test_what_it_is_started_with_is_little():
    """It is started again and again where there is no cluster."""
    code = "import prefetchd.remote.bridge, sys; print(*sorted({'numpy', 'ray', 'torch'} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.split() == []
