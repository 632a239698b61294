"""Keeps what a daemon is found by, while it lives: its lock file, its socket, its status segment.

Somebody may remove them under a daemon that runs: a logout clears $XDG_RUNTIME_DIR and, with RemoveIPC, /dev/shm;
something tidies /tmp. They are made again, unless another daemon has taken the place meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import stat
from pathlib import Path

from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.service import Service
from prefetchd.daemon.sockets.listener import Listener
from prefetchd.daemon.sockets.private_socket import listen_privately
from prefetchd.wire.errors import CallerError, PrefetchdError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.peer_credentials import peer_credentials
from prefetchd.wire.runtime_paths import SOCKET_VARIABLE, RuntimePaths, make_private

BACKLOG = 128
PROBE_TIMEOUT_S = 1.0
LOOK_AFTER_S = 0.25

log = logging.getLogger("prefetchd")


class DaemonEndpoint:
    """Listens on a daemon's socket, and restores all that it is found by. `lock` is held, and stays the caller's."""

    def __init__(
        self,
        loop: Loop,
        paths: RuntimePaths,
        lock: LockFile,
        generation: int,
        service: Service,
        listening: socket.socket | None = None,
    ) -> None:
        """Listens, or goes on `listening` on the socket of a service manager, which removes that itself (decision
        0032). `service` is told who connects. Raises CallerError when something is in the way."""
        self._loop = loop
        self._paths = paths
        self._lock = lock
        self._generation = generation
        self._service = service
        self._logged = ""
        sock = listening or listen(paths.socket)
        self._is_ours = listening is None
        # What lies there now is ours; as soon as it is another, somebody has removed it.
        self._identity = _identity(paths.socket)
        self._listener = Listener(sock, loop, service.session_events, _log_refusal)
        service.listen(self._listener)
        loop.call_later(LOOK_AFTER_S, self._look)

    def close(self) -> None:
        """Removes the socket, if it still is ours."""
        if self._is_ours and _identity(self._paths.socket) == self._identity:
            with contextlib.suppress(FileNotFoundError):
                self._paths.socket.unlink()

    def _look(self) -> None:
        if self._service.engine.stopping:
            return
        try:
            self._restore()
            self._logged = ""
        except (OSError, PrefetchdError) as error:
            # It is tried again and again, and told once.
            if str(error) != self._logged:
                self._logged = str(error)
                log.error("nobody finds this daemon", extra={"fields": {"why": self._logged}})
        self._loop.call_later(LOOK_AFTER_S, self._look)

    def _restore(self) -> None:
        if not self._lock.is_held:
            found = _identity(self._paths.socket)
            make_private(self._paths.socket.parent)
            if not self._lock.restore():
                # Another daemon starts, or finds that we are here and leaves again; or it serves in our place.
                if found not in (None, self._identity):
                    self._service.stop("another daemon serves its socket now: its lock file was removed")
                return
            self._lock.write_number(self._generation)
            self._tell("lock file")
        if _identity(self._paths.socket) != self._identity:
            sock = listen(self._paths.socket)
            self._identity = _identity(self._paths.socket)
            self._is_ours = True
            self._listener.listen_on(sock)
            self._tell("socket")
        if self._service.status.restore_name():
            self._tell("status segment")

    @staticmethod
    def _tell(what: str) -> None:
        log.warning("removed by somebody, made again", extra={"fields": {"what": what}})


def is_served(path: Path) -> bool:
    """True when a daemon of ours answers at `path`, whose lock file was removed. Raises CallerError when another user's
    process answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(os.fspath(path))
        except OSError:
            return False
        peer = peer_credentials(probe)
    if peer.uid != os.geteuid():
        raise CallerError(
            f"{path} is served by uid {peer.uid} (pid {peer.pid}), and this is uid {os.geteuid()}. Choose another with "
            f"--socket or ${SOCKET_VARIABLE}"
        )
    return True


def clear_the_way(path: Path) -> None:
    """Removes the socket of a daemon that died: the caller holds the lock, so no daemon of ours is behind it. Raises
    CallerError when anything else is there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(os.fspath(path))
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            if stat.S_ISSOCK(path.lstat().st_mode):
                path.unlink()
                return
        except OSError:
            pass
    raise CallerError(
        f"{path} is there, of uid {path.lstat().st_uid}, and is not the socket of a daemon that died; it was left "
        f"alone. Choose another with --socket or ${SOCKET_VARIABLE}"
    )


def listen(path: Path) -> socket.socket:
    """Returns a socket at `path` that accepts connections of our uid. Raises CallerError when something is in the
    way."""
    clear_the_way(path)
    return listen_privately(path, socket.SOCK_SEQPACKET, BACKLOG)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.lstat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _log_refusal(level: str, event: str, uid: int) -> None:
    log.log(getattr(logging, level.upper()), event, extra={"fields": {"uid": uid}})
