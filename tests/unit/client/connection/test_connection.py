"""The client's end: sends never block, and nothing that the daemon said before it ended is lost."""

from __future__ import annotations

import os
import socket

import pytest
from prefetchd_client.connection.connection import Connection

from prefetchd.wire.errors import DaemonUnavailableError, ProtocolError
from prefetchd.wire.framing import decode, encode
from prefetchd.wire.messages import CloseCursor, Farewell, Goodbye, Output, Program, RingOpened


@pytest.fixture
def daemon():
    """The daemon's end of the connection."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(10)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def connection(daemon):
    found = Connection(daemon[1])
    yield found
    found.close()


@pytest.fixture
def peer(daemon):
    return daemon[0]


def test_messages_come_and_go_in_order(connection, peer):
    for number in range(3):
        connection.send(CloseCursor(number))
        peer.send(encode(Output(number, "")))
    assert [decode(peer.recv(100)) for _ in range(3)] == [CloseCursor(number) for number in range(3)]
    assert [connection.receive() for _ in range(3)] == [(Output(number, ""), []) for number in range(3)]
    assert connection.receive() is None
    assert connection.is_open


def test_a_daemon_that_does_not_read_stops_nobody(connection, peer):
    for number in range(5000):
        connection.send(CloseCursor(number))
    received = []
    while len(received) < 5000:
        received.append(decode(peer.recv(100)))
        connection.flush()
    assert received == [CloseCursor(number) for number in range(5000)]


def test_descriptors_come_with_their_message(connection, peer):
    with open(os.devnull, "rb") as file:
        socket.send_fds(peer, [encode(RingOpened(1))], [file.fileno()])
    message, (fd,) = connection.receive()
    assert message == RingOpened(1)
    assert os.readlink(f"/proc/self/fd/{fd}") == os.devnull
    os.close(fd)


def test_a_descriptor_goes_with_a_program(connection, peer):
    with open(os.devnull, "rb") as file:
        connection.send_with_fds(Program("/p", 1), [file.fileno()])
    packet, (fd,), _, _ = socket.recv_fds(peer, 100, 4)
    os.close(fd)
    assert decode(packet) == Program("/p", 1)


def test_a_program_for_a_daemon_that_is_gone_is_told_by_receive(connection, peer):
    """Found by chaos: it ended the trainer."""
    peer.close()
    with open(os.devnull) as file:
        connection.send_with_fds(Program("/p", 1), [file.fileno()])
    assert connection.receive() is None
    assert not connection.is_open


def test_the_daemon_s_end_is_told_by_receive(connection, peer):
    peer.close()
    assert connection.receive() is None
    assert not connection.is_open
    connection.send(Goodbye())
    assert connection.receive() is None


def test_a_farewell_is_read_though_sending_has_failed(connection, peer):
    """The trainer sends before it reads; the daemon said why it goes."""
    peer.send(encode(Farewell("SIGTERM")))
    peer.close()
    connection.send(CloseCursor(1))
    connection.send(CloseCursor(2))
    assert connection.is_open
    assert connection.receive() == (Farewell("SIGTERM"), [])
    assert connection.receive() is None
    assert not connection.is_open


def test_a_farewell_is_read_though_the_daemon_ended_without_reading_ours(connection, peer):
    """Then the kernel resets the connection, and says so before it hands out what is still queued."""
    connection.send(CloseCursor(1))
    peer.send(encode(Output(1, "last words")))
    peer.send(encode(Farewell("SIGTERM")))
    peer.close()
    assert connection.wait(10)
    assert connection.receive() == (Output(1, "last words"), [])
    assert connection.receive() == (Farewell("SIGTERM"), [])
    assert connection.receive() is None
    assert not connection.is_open


def test_a_reset_after_a_full_outbox_ends_it_too(connection, peer):
    for number in range(2000):
        connection.send(CloseCursor(number))
    peer.send(encode(Farewell("SIGTERM")))
    peer.close()
    connection.flush()
    assert connection.receive() == (Farewell("SIGTERM"), [])
    assert connection.receive() is None
    assert not connection.is_open


def test_garbage_from_the_daemon_is_a_protocol_error(connection, peer):
    peer.send(b"\xc1")
    with pytest.raises(ProtocolError):
        connection.receive()


def test_waiting_ends_with_a_message_or_with_its_time(connection, peer):
    assert not connection.wait(0.0)
    assert not connection.wait(-1.0)
    peer.send(encode(Goodbye()))
    assert connection.wait(10.0)


def test_expecting_a_message_waits_for_it(connection, peer):
    peer.send(encode(Goodbye()))
    assert connection.expect(10.0) == (Goodbye(), [])
    with pytest.raises(DaemonUnavailableError, match="not answered for 0 s"):
        connection.expect(0.01)
    peer.close()
    with pytest.raises(DaemonUnavailableError, match="closed the connection"):
        connection.expect(10.0)
