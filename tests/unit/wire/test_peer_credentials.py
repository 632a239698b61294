"""Who is at the other end of a socket."""

from __future__ import annotations

import os
import socket

from prefetchd.wire.peer_credentials import PeerCredentials, peer_credentials


def test_a_socket_pair_is_of_this_process():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        assert peer_credentials(ours) == PeerCredentials(os.getpid(), os.geteuid(), os.getegid())


def test_a_connection_is_of_the_process_that_connected(tmp_path):
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connecting:
        listening.bind(os.fspath(tmp_path / "s"))
        listening.listen()
        child = os.fork()
        if child == 0:
            try:
                connecting.connect(os.fspath(tmp_path / "s"))
            finally:
                os._exit(0)
        accepted, _ = listening.accept()
        os.waitpid(child, 0)
        with accepted:
            assert peer_credentials(accepted).pid == child
