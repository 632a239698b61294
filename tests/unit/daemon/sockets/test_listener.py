"""The listener: whom it lets in, and when a connection of a dead process ends."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys

from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.sockets.acceptor import ACCEPT_AGAIN_S
from prefetchd.daemon.sockets.listener import Listener, _peer_pidfd
from prefetchd.daemon.sockets.sessions import HELLO_WITHIN_S
from prefetchd.wire.framing import receive


class Events:
    """Stops the loop when a session has ended."""

    def __init__(self, loop):
        self.loop = loop
        self.ended = []

    def session_ended(self, session):
        self.ended.append(session.number)
        self.loop.stop()


# --- processes that end ---


def test_a_connection_ends_with_the_process_that_made_it_though_a_child_keeps_it(tmp_path):
    loop = Loop()
    events = Events(loop)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(os.fspath(tmp_path / "s"))
    server.listen()
    listener = Listener(server, loop, events, lambda *_: None)
    script = f"""
import os, socket, subprocess, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.connect({os.fspath(tmp_path / "s")!r})
child = subprocess.Popen(["sleep", "60"], pass_fds=[sock.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
print(child.pid, flush=True)
sys.stdin.read()
"""
    trainer = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child = int(trainer.stdout.readline())
    try:
        loop.call_later(0.0, loop.stop)
        loop.run()
        assert list(listener.sessions) == [1]
        trainer.kill()
        trainer.wait()
        loop.call_later(30.0, loop.stop)
        loop.run()
        assert events.ended == [1]
        os.kill(child, 0)
    finally:
        os.kill(child, 9)
        trainer.stdin.close()
        trainer.stdout.close()
        listener.close()
        loop.close()


def test_the_peer_s_pidfd_is_of_the_process_that_connected():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with one, other:
        fd = _peer_pidfd(one)
        try:
            with open(f"/proc/self/fdinfo/{fd}") as info:
                assert f"Pid:\t{os.getpid()}\n" in info.read()
        finally:
            os.close(fd)


# --- the listener ---


class OutOfDescriptors:
    """A listening socket whose accept fails until there are descriptors again."""

    def __init__(self, sock):
        self.sock = sock
        self.asked = 0
        self.fails = True

    def accept(self):
        self.asked += 1
        if self.fails:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.sock.accept()

    def __getattr__(self, name):
        return getattr(self.sock, name)


def test_a_listener_out_of_descriptors_asks_again_after_a_while_and_not_at_once(tmp_path, monkeypatch):
    loop = Loop()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(os.fspath(tmp_path / "s"))
    server.listen()
    short = OutOfDescriptors(server)
    later = []
    monkeypatch.setattr(loop, "call_later", lambda delay_s, callback: later.append((delay_s, callback)))
    listener = Listener(short, loop, Events(loop), lambda *_: None)
    client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        client.connect(os.fspath(tmp_path / "s"))
        rounds = []
        loop.after_each(lambda: rounds.append(1) or (len(rounds) % 5 == 0 and loop.stop()))
        loop.in_between(lambda: False)
        loop.run()
        assert short.asked == 1
        ((delay_s, again),) = later
        assert delay_s == ACCEPT_AGAIN_S
        short.fails = False
        again()
        loop.run()
        assert list(listener.sessions) == [1]
        session = listener.sessions[1]
        listener.end_silent(session.opened_s + HELLO_WITHIN_S - 1)
        assert list(listener.sessions) == [1]
        listener.end_silent(session.opened_s + HELLO_WITHIN_S)
        assert "no Hello" in receive(client).message
    finally:
        for session in list(listener.sessions.values()):
            session.close()
        listener.close()
        listener.close()
        again()
        client.close()
        loop.close()
