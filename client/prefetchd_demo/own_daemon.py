"""own_daemon runs a daemon of the demo's own, away from the user's, with everything it leaves in one directory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from prefetchd.wire.errors import DaemonUnavailableError
from prefetchd.wire.own_segments import open_status
from prefetchd.wire.runtime_paths import SOCKET_VARIABLE, RuntimePaths, runtime_paths
from prefetchd.wire.status_layout import COPY_BYTES, HEAD, copy_offset, decode_copy, decode_head
from prefetchd_demo.interruption import uninterrupted

START_TIMEOUT_S = 60.0
LOG_LINES = 20
LONGEST_PARENT = 40
"""Bytes of a directory's path that leave room for a Unix socket's (107 in all): multiprocessing hides its own deep."""
# Should the demo be killed, its daemon ends soon after.
LINGER_S, IDLE_EXIT_S = 60, 30


@dataclasses.dataclass(frozen=True)
class RingFill:
    """Counts the batches in the ring that no trainer has had yet, and the ring's slots."""

    ready: int
    slots: int


@dataclasses.dataclass(frozen=True)
class OwnDaemon:
    """Observes a running daemon from outside."""

    paths: RuntimePaths
    environment: dict[str, str]

    def ring_fill(self) -> RingFill | None:
        """Returns how full the ring of the only stream is, or None while there is none. Asks the daemon nothing: it
        reads the status segment."""
        try:
            fd = open_status(self.paths)
        except FileNotFoundError:
            return None
        try:
            current = decode_head(os.pread(fd, HEAD.size, 0)).current
            found = decode_copy(os.pread(fd, COPY_BYTES, copy_offset(current)))
        finally:
            os.close(fd)
        rings = [stream["ring"] for stream in (found or {}).get("streams", ()) if stream["ring"]]
        return RingFill(rings[0]["ready"], rings[0]["slots"]) if rings else None

    def log_tail(self) -> str:
        """Returns the last lines of the daemon's log, or an empty string."""
        try:
            return "\n".join(self.paths.log.read_text().splitlines()[-LOG_LINES:])
        except OSError:
            return ""


@contextlib.contextmanager
def own_directory() -> Iterator[Path]:
    """Makes a private directory for sockets and temporary files, which is removed afterwards."""
    parent = tempfile.gettempdir() if len(tempfile.gettempdir()) <= LONGEST_PARENT else "/tmp"
    with tempfile.TemporaryDirectory(prefix="prefetchd-demo-", dir=parent, ignore_cleanup_errors=True) as name:
        yield Path(name)


def own_environment(directory: Path) -> dict[str, str]:
    """Returns the environment for processes that shall use no daemon but the one in `directory`, and leave their files
    there too."""
    own = {SOCKET_VARIABLE: str(directory / "d.sock"), "XDG_STATE_HOME": str(directory), "TMPDIR": str(directory)}
    return {**os.environ, "PREFETCHD_INLINE": "", **own}


@contextlib.contextmanager
def own_daemon(environment: dict[str, str], workers: int) -> Iterator[OwnDaemon]:
    """Starts the daemon, and ends it with all it had. Raises DaemonUnavailableError with what it said."""
    daemon = OwnDaemon(runtime_paths(env=environment), environment)
    starter = _command(daemon, "run", "--detach", "--workers", str(workers))
    try:
        _await_start(starter)
        yield daemon
    finally:
        with uninterrupted():
            starter.wait()
            stopper = _command(daemon, "stop")
            said, _ = stopper.communicate()
        if stopper.returncode:
            print(f"prefetchd demo: its daemon was not stopped: {said.strip()}", file=sys.stderr)


def _command(daemon: OwnDaemon, verb: str, *options: str) -> subprocess.Popen[str]:
    """Runs `prefetchd VERB` in a session of its own: a terminal's Ctrl-C does not reach it."""
    if verb == "run":
        options += ("--linger", str(LINGER_S), "--linger-clean", str(LINGER_S), "--idle-exit", str(IDLE_EXIT_S))
    return subprocess.Popen(
        [sys.executable, "-m", "prefetchd", verb, *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=daemon.environment,
        start_new_session=True,
    )


def _await_start(starter: subprocess.Popen[str]) -> None:
    try:
        said, _ = starter.communicate(timeout=START_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        starter.kill()
        raise DaemonUnavailableError(f"the demo's daemon did not start within {START_TIMEOUT_S:.0f} s") from None
    if starter.returncode:
        raise DaemonUnavailableError(f"the demo's daemon did not start: {said.strip()}")
