"""A socket that others must not connect to is closed to them from its first moment on."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from prefetchd.daemon.sockets.private_socket import listen_privately


@pytest.fixture
def lax_umask():
    """A umask that closes nothing to anybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_SEQPACKET])
def test_its_mode_does_not_depend_on_the_umask(tmp_path, lax_umask, kind):
    with listen_privately(tmp_path / "s", kind, 4):
        assert stat.S_IMODE((tmp_path / "s").stat().st_mode) == 0o600


def test_the_umask_is_as_it_was(tmp_path, lax_umask):
    listen_privately(tmp_path / "s", socket.SOCK_STREAM, 4).close()
    with pytest.raises(OSError, match="in use"):
        listen_privately(tmp_path / "s", socket.SOCK_STREAM, 4)
    assert os.umask(0) == 0


def test_it_accepts(tmp_path):
    with listen_privately(tmp_path / "s", socket.SOCK_SEQPACKET, 4) as sock, socket.socket(*kind_of(sock)) as peer:
        peer.connect(os.fspath(tmp_path / "s"))
        accepted, _ = sock.accept()
        accepted.close()


def kind_of(sock: socket.socket) -> tuple[int, int]:
    return sock.family, sock.type
