"""Messages too long for a packet, between the daemon and its children."""

from __future__ import annotations

import os
import socket

import pytest

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import MAX_PACKET_BYTES, close_all, disclose, enclose, receive_with_fds, send
from prefetchd.wire.messages import Enclosed, Planned, Ready

LONG = Planned(epoch=1, first_step=2, samples=(9,), keys=(bytes(range(256)) * 1000,))


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_short_message_goes_as_it_is():
    assert enclose(Ready("x")) == (Ready("x"), [])
    assert disclose(Ready("x"), []) == (Ready("x"), [])


def test_a_long_message_arrives_whole_and_leaves_no_descriptor():
    before = open_fds()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        enclosed, beside = enclose(LONG)
        assert isinstance(enclosed, Enclosed)
        assert enclosed.packet_bytes > MAX_PACKET_BYTES
        send(ours, enclosed, beside)
        close_all(beside)
        message, fds = receive_with_fds(theirs)
        assert message is not None
        assert disclose(message, fds) == (LONG, [])
    assert open_fds() == before


@pytest.mark.parametrize("packet_bytes", [0, -1, 1 << 40, 5])
def test_a_bad_enclosure_is_refused_and_its_descriptor_closed(packet_bytes):
    before = open_fds()
    _, beside = enclose(LONG)
    with pytest.raises(ProtocolError):
        disclose(Enclosed(packet_bytes), beside)
    with pytest.raises(ProtocolError):
        disclose(Enclosed(100), [])
    assert open_fds() == before
