"""What bridges may do, without a cluster: an interpreter runs `main` in the place of a bridge's."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys

from prefetchd.processes.environment import read_environment
from prefetchd.wire.fill_task import FillTask
from prefetchd.wire.framing import encode, receive_with_fds, send
from prefetchd.wire.messages import (
    Filled,
    FillRemote,
    LateAnswer,
    OpenBridge,
    Ready,
    RemoteAnswer,
    RemoteEnded,
    RemotePrinted,
    RemoteReady,
    Revoke,
    Revoked,
    StartRemote,
    StopRemote,
    Unreachable,
    UseRing,
)
from prefetchd.wire.stream_spec import decode_spec

TRANSFER_US = 5


def bootstrap(act: str) -> str:
    """In the place of BRIDGE_BOOTSTRAP: what begins with an act of this module."""
    return (
        "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
        f"from tests.unit.supervisor.stand_in_bridge import main; main({act!r}, *sys.argv[2:])"
    )


def main(act: str, parent: str, sock_fd: str) -> None:
    """Does it, in an interpreter of its own."""
    assert int(parent) == os.getppid()
    sock = socket.socket(fileno=int(sock_fd))
    {
        "serve": serve,
        "has no cluster": has_no_cluster,
        "exit": lambda _: os._exit(3),
        "talk nonsense": lambda sock: (sock.send(b"nonsense"), signal.pause()),
        "answer nonsense": lambda sock: (send(sock, RemoteAnswer(1, b"nonsense", 0)), signal.pause()),
        "print": prints,
        "show variables": show_variables,
    }[act](sock)


def serve(sock: socket.socket) -> None:
    """Answers everything, until the daemon is gone."""
    while True:
        message, fds = receive_with_fds(sock)
        if message is None:
            return
        if isinstance(message, OpenBridge):
            read_environment(fds[0])
            send(sock, Ready(f"{decode_spec(message.spec).length} at {message.address}"))
        elif isinstance(message, UseRing):
            send(sock, RemoteReady(0, f"a ring of {os.fstat(fds[0]).st_size}", message.layout.decode()))
        elif isinstance(message, StartRemote):
            for worker in message.workers:
                send(sock, RemoteReady(worker, f"node of {worker}" + "!" * 1000, "a processor" + "!" * 1000))
        elif isinstance(message, FillRemote):
            for row in message.tasks:
                filled = Filled(((FillTask.from_row(row).number, 100, 10, 4),))
                send(sock, RemoteAnswer(message.worker, encode(filled), TRANSFER_US))
        elif isinstance(message, Revoke):
            send(sock, Revoked(message.task))
            send(sock, LateAnswer(7, message.task))
        elif isinstance(message, StopRemote):
            send(sock, RemotePrinted(message.worker, (b"printed \xff there", b"and more"), 3))
            send(sock, RemoteEnded(message.worker, "it was stopped", True))


def has_no_cluster(sock: socket.socket) -> None:
    receive_with_fds(sock)
    send(sock, Unreachable("nobody answers there", True))


def prints(sock: socket.socket) -> None:
    print("on its way", flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    serve(sock)


def show_variables(sock: socket.socket) -> None:
    names = ("RAY_AUTH_MODE", "RAY_ADDRESS", "OF_THE_DAEMON", "OF_THE_TRAINER", "CUDA_VISIBLE_DEVICES")
    receive_with_fds(sock)
    send(sock, Unreachable(json.dumps({name: os.environ.get(name) for name in names}), False))
