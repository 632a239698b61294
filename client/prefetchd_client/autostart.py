"""Reaching a daemon, and starting one when none answers. Many processes may try at once; one daemon comes of it."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import time

from prefetchd.wire.errors import DaemonUnavailableError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import SOCKET_VARIABLE, RuntimePaths, make_private

START_TIMEOUT_S = 60.0
LOOK_AGAIN_S = 0.1
MOST_FAILED_STARTS = 3
_UCRED = struct.Struct("iII")
IDLE_EXIT_S = 900.0


def what_it_says(paths: RuntimePaths) -> str:
    """Where the daemon's own words are found: its log, or whatever runs it in the foreground."""
    return f"see {paths.log}" if paths.log.exists() else "see what the daemon wrote to its stderr (or journalctl)"


def connect(paths: RuntimePaths, timeout_s: float = START_TIMEOUT_S) -> socket.socket | None:
    """A connection to the daemon, or None when none answers, or none within `timeout_s` if that is 0. Raises
    DaemonUnavailableError when something else does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(timeout_s)
    try:
        sock.connect(os.fspath(paths.socket))
    except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        sock.close()
        return None
    except OSError as error:
        sock.close()
        raise DaemonUnavailableError(
            f"{paths.socket} cannot be connected to: {error.strerror or error}; choose another with socket= or "
            f"${SOCKET_VARIABLE}"
        ) from None
    except BaseException:
        sock.close()
        raise
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    if uid != os.geteuid():
        sock.close()
        raise DaemonUnavailableError(f"{paths.socket} is served by uid {uid}, not by you; choose another with socket=")
    return sock


def connect_or_start(paths: RuntimePaths) -> socket.socket:
    """A connection to the daemon, which is started if need be. Blocks up to START_TIMEOUT_S.

    Raises DaemonUnavailableError, naming socket and log.
    """
    sock = connect(paths)
    if sock is not None:
        return sock
    make_private(paths.socket.parent)
    lock = LockFile(paths.start_lock)
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not lock.acquire(LOOK_AGAIN_S):
        # Whoever has the lock may be stopped, and a daemon serves nevertheless.
        sock = connect(paths)
        if sock is not None:
            return sock
        if time.monotonic() >= deadline_s:
            raise DaemonUnavailableError(f"another process has been starting a daemon on {paths.socket} for too long")
    try:
        deadline_s = time.monotonic() + START_TIMEOUT_S
        sock = connect(paths)
        while sock is None and time.monotonic() < deadline_s:
            # While another daemon comes up or goes down, ours finds the lock taken and leaves it at that.
            start_daemon(paths)
            sock = connect(paths)
            if sock is None:
                time.sleep(LOOK_AGAIN_S)
    finally:
        lock.release()
    if sock is None:
        raise DaemonUnavailableError(
            f"the daemon that was started does not answer on {paths.socket}; {what_it_says(paths)}"
        )
    return sock


def start_daemon(paths: RuntimePaths) -> None:
    """Starts a daemon that outlives this process and exits when it has been idle for long; once more when that fails,
    as somebody may have killed it. Blocks until it serves.

    Raises DaemonUnavailableError with what it said.
    """
    failure: DaemonUnavailableError | None = None
    for _ in range(MOST_FAILED_STARTS):
        process = launch(paths)
        try:
            process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise DaemonUnavailableError(
                f"the daemon did not start within {START_TIMEOUT_S:.0f} s; {what_it_says(paths)}"
            ) from None
        failure = outcome(process, paths)
        if failure is None:
            return
    assert failure is not None
    raise failure


def launch(paths: RuntimePaths, config: bytes = b"") -> subprocess.Popen[bytes]:
    """Begins to start a daemon, with the configuration file `config` if there is one; the process ends when the daemon
    serves, or cannot (see outcome). Does not block. Raises DaemonUnavailableError when no process can be started."""
    command = [sys.executable, "-m", "prefetchd", "run", "--detach", "--socket", os.fspath(paths.socket)]
    command += ["--idle-exit", str(IDLE_EXIT_S), "--reset-affinity"]
    command += ["--config", os.fsdecode(config)] if config else []
    # The trainer may have made our modules importable by other means than an installation.
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(entry for entry in sys.path if entry))
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment,
        )
    except OSError as error:
        raise DaemonUnavailableError(f"no daemon can be started with {sys.executable}: {error.strerror}") from None


def outcome(process: subprocess.Popen[bytes], paths: RuntimePaths) -> DaemonUnavailableError | None:
    """What became of a launch that has ended; None when a daemon serves."""
    output, _ = process.communicate()
    if not process.returncode:
        return None
    said = output.decode("utf-8", "replace").strip()
    return DaemonUnavailableError(
        f"the daemon did not start (exit {process.returncode}): {said}; {what_it_says(paths)}"
    )
