"""Says where a daemon's socket, lock, log and shared memory are, to daemon and client alike.

The socket lives in a directory that only its owner can enter; large things never go there (it is a small tmpfs). A
daemon is known by its socket: `instance` is derived from it and is part of every shared memory name, so that daemons on
different sockets never touch each other's segments.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from prefetchd.wire.errors import CallerError, UntrustedPathError
from prefetchd.wire.trusted_paths import make_directory, own_home

PROTOCOL_DIRECTORY = "v1"
SOCKET_NAME = "daemon.sock"
SOCKET_VARIABLE = "PREFETCHD_SOCKET"
CONFIG_VARIABLE = "PREFETCHD_CONFIG"
METRICS_VARIABLE = "PREFETCHD_METRICS"
RAY_VARIABLE = "PREFETCHD_RAY"
SHARED_MEMORY = "/dev/shm"
SEGMENT_PREFIX = "prefetchd-"
SOCKET_PATH_LIMIT = 100  # sockaddr_un holds 108 bytes; some are kept for the lock beside it


@dataclasses.dataclass(frozen=True)
class RuntimePaths:
    """The paths and names of one daemon."""

    socket: Path
    log: Path

    @property
    def lock(self) -> Path:
        """The lock that the daemon holds while it lives: there is one daemon on a socket."""
        return self.socket.with_name(self.socket.name + ".lock")

    @property
    def start_lock(self) -> Path:
        """The lock that a client holds while it starts a daemon: others wait for the outcome."""
        return self.socket.with_name(self.socket.name + ".start")

    @property
    def history(self) -> Path:
        """The history file of a daemon whose configuration names none (wire.history_file)."""
        return self.socket.with_name(self.socket.name + ".history")

    @property
    def start_record(self) -> Path:
        """The file that says how the daemon was started, for the next daemon."""
        return self.socket.with_name(self.socket.name + ".options")

    @property
    def instance(self) -> str:
        return hashlib.blake2s(os.fsencode(self.socket), digest_size=4).hexdigest()

    @property
    def process_mark(self) -> str:
        """The name of the memfd that every process holds which was forked from a trainer for this daemon: the command
        line of such a process is the trainer's."""
        return f"{SEGMENT_PREFIX}{self.instance}"

    @property
    def status_segment(self) -> str:
        return f"/{SEGMENT_PREFIX}{self.instance}-status"

    def segment_name(self, kind: str, token: str) -> str:
        """Returns the name of a "ring" or "program" segment; `token` tells it from others of the kind."""
        return f"/{SEGMENT_PREFIX}{self.instance}-{kind}-{token}"


def runtime_paths(socket: str | os.PathLike[str] | None = None, env: Mapping[str, str] = os.environ) -> RuntimePaths:
    """Returns the paths of the daemon at `socket`, else at $PREFETCHD_SOCKET, else at the user's own place.

    Creates nothing. Raises CallerError when the path is too long for a Unix socket.
    """
    chosen = os.fspath(socket) if socket is not None else env.get(SOCKET_VARIABLE, "")
    state = _state_directory(env)
    own = _runtime_directory(env) / PROTOCOL_DIRECTORY / SOCKET_NAME
    path = Path(os.path.abspath(chosen)) if chosen else own
    if path == own:
        log = state / "daemon.log"
    else:
        log = state / f"daemon-{hashlib.blake2s(os.fsencode(path), digest_size=4).hexdigest()}.log"
    if len(os.fsencode(path)) > SOCKET_PATH_LIMIT:
        raise CallerError(
            f"socket path of {len(os.fsencode(path))} bytes: {path}; allowed: {SOCKET_PATH_LIMIT}. "
            f"Choose a shorter one with --socket or ${SOCKET_VARIABLE}"
        )
    return RuntimePaths(path, log)


def make_private(directory: Path) -> None:
    """Creates `directory`, and what is missing above it, with mode 0700, or checks that nobody else can put anything in
    our socket's place there: also not by another tree in the place of one that it lies in.

    Raises CallerError, naming owner and mode, when another user could put a socket there.
    """
    try:
        # Whoever made a link may lead it elsewhere later.
        if directory.is_symlink():
            raise NotADirectoryError
        make_directory(directory, f"Choose another with --socket or ${SOCKET_VARIABLE}")
    except (FileExistsError, FileNotFoundError, NotADirectoryError):
        raise UntrustedPathError(
            f"{directory} is no directory; allowed: one of uid {os.geteuid()} that nobody else may write to. Choose "
            f"another with --socket or ${SOCKET_VARIABLE}"
        ) from None
    found = directory.lstat()
    # In root's sticky directories, such as /tmp, nobody can replace our socket either.
    sticky = found.st_uid in (0, os.geteuid()) and found.st_mode & stat.S_ISVTX
    if found.st_uid != os.geteuid() and not sticky:
        raise UntrustedPathError(
            f"{directory} belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; "
            f"allowed: a directory of uid {os.geteuid()} that nobody else may write to. "
            f"Choose another with --socket or ${SOCKET_VARIABLE}"
        )


def _state_directory(env: Mapping[str, str]) -> Path:
    """Returns where logs are. Never in a directory that is everybody's: somebody else may have made a link there."""
    given = env.get("XDG_STATE_HOME")
    if given:
        return Path(given) / "prefetchd"
    home = env.get("HOME") or own_home()
    if home:
        return Path(home) / ".local" / "state" / "prefetchd"
    return _temporary_directory() / f"prefetchd-{os.geteuid()}" / "state"


def _runtime_directory(env: Mapping[str, str]) -> Path:
    given = env.get("XDG_RUNTIME_DIR")
    if given and os.path.isdir(given):
        return Path(given) / "prefetchd"
    own = f"prefetchd-{os.geteuid()}"
    beneath = _temporary_directory() / own
    # TMPDIR may be anything, and DataLoader works with it.
    if len(os.fsencode(beneath / PROTOCOL_DIRECTORY / SOCKET_NAME)) > SOCKET_PATH_LIMIT:
        return Path("/tmp") / own
    return beneath


def _temporary_directory() -> Path:
    # Here: it takes a fortieth of a daemon's start, and few need it.
    import tempfile

    return Path(tempfile.gettempdir())
