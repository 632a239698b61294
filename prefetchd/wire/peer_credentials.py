"""Says which process is at the other end of a Unix socket, as the kernel vouches for it (unix(7), SO_PEERCRED)."""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

_UCRED = struct.Struct("iII")


class PeerCredentials(NamedTuple):
    """The process that connected, or made the socket pair; and its effective user and group at that time."""

    pid: int
    uid: int
    gid: int


def peer_credentials(sock: socket.socket) -> PeerCredentials:
    """Returns the credentials of the peer of a connected Unix socket. Raises OSError."""
    return PeerCredentials(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))
