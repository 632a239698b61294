"""Descriptors that come with a message where they do not belong: the daemon keeps none of them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket

import pytest

from prefetchd.wire.messages import Evict, Forked, Hello, Introduce, Message, Pause, Program, SetLogLevel, Stop
from tests.scenario.raw_peer import Peer, control_hello, trainer_hello
from tests.scenario.waiting import open_fds, until
from tests.unit.wire.golden.examples import MESSAGES

CARRIERS: dict[str, Message] = {
    "Introduce": Introduce(),
    "Program": Program("/prefetchd-1-program-x", 10),
    "Forked": Forked(os.getpid()),
}
HARMS = (Hello, Stop, Evict, Pause, SetLogLevel)
"""Messages that end the daemon, begin a stream, or change what other tests see."""


@contextlib.contextmanager
def a_descriptor(kind):
    with contextlib.ExitStack() as stack:
        if kind == "socket":
            one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(one)
            yield stack.enter_context(other).fileno()
        elif kind in ("stream", "datagram", "unconnected", "listening", "tcp"):
            family = socket.AF_INET if kind == "tcp" else socket.AF_UNIX
            packets = socket.SOCK_SEQPACKET
            types = {"datagram": socket.SOCK_DGRAM, "unconnected": packets, "listening": packets}
            sock = stack.enter_context(socket.socket(family, types.get(kind, socket.SOCK_STREAM)))
            if kind == "listening":
                sock.bind("")
                sock.listen()
            yield sock.fileno()
        elif kind == "pipe":
            fds = os.pipe()
            stack.callback(lambda: [os.close(fd) for fd in fds])
            yield fds[0]
        elif kind == "epoll":
            yield stack.enter_context(select.epoll()).fileno()
        else:
            make = {
                "file": lambda: os.open(__file__, os.O_RDONLY),
                "directory": lambda: os.open("/", os.O_RDONLY),
                "path only": lambda: os.open("/", os.O_PATH),
                "null": lambda: os.open(os.devnull, os.O_RDWR),
                "memfd": lambda: os.memfd_create("stray"),
                "pidfd": lambda: os.pidfd_open(os.getpid()),
                "event": lambda: os.eventfd(0) if hasattr(os, "eventfd") else os.open(os.devnull, os.O_RDWR),
            }[kind]
            fd = make()
            stack.callback(os.close, fd)
            yield fd


KINDS = (
    *("socket", "stream", "datagram", "unconnected", "listening", "tcp", "pipe", "epoll"),
    *("file", "directory", "path only", "null", "memfd", "pidfd", "event"),
)

ROLES = {"nobody": None, "trainer": trainer_hello(), "control": control_hello()}


def say(daemon, role, message, fds):
    """Sends the message in a connection of its own, and waits until the daemon has taken it in."""
    with Peer(daemon.socket) as peer:
        if ROLES[role] is not None:
            peer.say(ROLES[role])
        with contextlib.suppress(OSError):
            peer.say(message, fds)
            # What was introduced may be heard of by the daemon after this connection: it answers then.
            peer.say(b"nonsense")
            while peer.hear() is not None:
                pass


@pytest.mark.parametrize("role", ROLES)
def test_the_daemon_keeps_no_descriptor_of_any_message(shared_daemon, role):
    """Introduce with what is no socket leaked one each: after a second a daemon of 128 had none left."""
    shared_daemon.start()
    say(shared_daemon, role, next(iter(CARRIERS.values())), ())
    before = open_fds(shared_daemon.pid)
    for message in CARRIERS.values():
        for kind in KINDS:
            with a_descriptor(kind) as fd:
                for count in (1, 3):
                    say(shared_daemon, role, message, [fd] * count)
    with a_descriptor("pipe") as fd:
        for message in MESSAGES:
            if not isinstance(message, HARMS):
                say(shared_daemon, role, message, [fd])
    until(lambda: open_fds(shared_daemon.pid) <= before, "all stray descriptors are closed")


def test_bad_messages_are_one_line_in_the_log_and_no_traceback(daemon):
    daemon.start()
    with a_descriptor("pipe") as fd:
        for _ in range(20):
            say(daemon, "nobody", Introduce(), [fd])
    lines = [json.loads(line) for line in daemon.command("logs", "--json").stdout.splitlines()]
    (bad,) = [each for each in lines if each["event"] == "bad message"]
    assert "no socket" in bad["why"]
    assert not [each for each in lines if "Traceback" in json.dumps(each)]
