"""connect_or_start reaches a daemon, and starts one when none answers. Many processes may try at once; one daemon comes
of it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time

from prefetchd.wire.errors import DaemonUnavailableError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.peer_credentials import peer_credentials
from prefetchd.wire.runtime_paths import SOCKET_VARIABLE, RuntimePaths, make_private

START_TIMEOUT_S = 60.0
LOOK_AGAIN_S = 0.1
MOST_FAILED_STARTS = 3
IDLE_EXIT_S = 900.0


def what_it_says(paths: RuntimePaths) -> str:
    """Says where the daemon's own messages are: in its log, or with whatever runs it in the foreground."""
    return f"see {paths.log}" if paths.log.exists() else "see what the daemon wrote to its stderr (or journalctl)"


def connect(paths: RuntimePaths, timeout_s: float = START_TIMEOUT_S) -> socket.socket | None:
    """Returns a connection to the daemon. Returns None when no daemon answers, or does not within `timeout_s` if that
    is 0. Raises DaemonUnavailableError when the socket cannot be connected to, or is served by another user."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(timeout_s)
    try:
        sock.connect(os.fspath(paths.socket))
    # With a timeout of 0 a full backlog is no answer, either.
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
    uid = peer_credentials(sock).uid
    if uid != os.geteuid():
        sock.close()
        raise DaemonUnavailableError(f"{paths.socket} is served by uid {uid}, not by you; choose another with socket=")
    return sock


def connect_or_start(paths: RuntimePaths) -> socket.socket:
    """Returns a connection to the daemon, which is started if need be. Blocks up to START_TIMEOUT_S.

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
    """Starts a daemon that outlives this process and exits when it has been idle for long. Blocks until it serves.

    Raises DaemonUnavailableError with what it said.
    """
    failure: DaemonUnavailableError | None = None
    for _ in range(MOST_FAILED_STARTS):
        launch = Launch(paths)
        if not launch.wait(START_TIMEOUT_S):
            launch.end()
            raise DaemonUnavailableError(
                f"the daemon did not start within {START_TIMEOUT_S:.0f} s; {what_it_says(paths)}"
            )
        failure = launch.failure()
        if failure is None:
            return
    assert failure is not None
    raise failure


_launched: list[subprocess.Popen[bytes]] = []
"""Launches of this process that have not ended, as far as is known."""


def reap_launches() -> None:
    """Reaps the launches that have ended. Does not block."""
    _launched[:] = [process for process in _launched if process.poll() is None]


class Launch:
    """Starts one daemon, and follows its start. May be forked with the process that it belongs to: then one of the two
    goes on with it, and the other calls leave()."""

    def __init__(self, paths: RuntimePaths, config: bytes = b"", environment: bytes = b"") -> None:
        """Begins the start, with the configuration file `config` if there is one. The daemon prepares itself for
        loaders of that `environment`, encoded. Does not block. Raises DaemonUnavailableError when no process can be
        started."""
        command = [sys.executable, "-m", "prefetchd.cli.detached", os.fspath(paths.socket), str(IDLE_EXIT_S)]
        command += [os.fsdecode(config)] if config else []
        # The trainer may have made our modules importable by other means than an installation.
        variables = dict(os.environ, PYTHONPATH=os.pathsep.join(entry for entry in sys.path if entry))
        self._paths = paths
        self._owner = os.getpid()
        reap_launches()
        told = _file_of(environment) if environment else subprocess.DEVNULL
        try:
            self._process = subprocess.Popen(
                command,
                stdin=told,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=variables,
            )
        except OSError as error:
            raise DaemonUnavailableError(f"no daemon can be started with {sys.executable}: {error.strerror}") from None
        finally:
            if told >= 0:
                os.close(told)
        # Also if whoever has this one forgets it: what nobody waits for is reaped.
        _launched.append(self._process)
        self._pidfd = os.pidfd_open(self._process.pid)

    @property
    def descriptors(self) -> list[int]:
        """The descriptors that a fork needs which goes on with this launch."""
        assert self._process.stdout is not None
        return [self._pidfd, self._process.stdout.fileno()]

    def wait(self, timeout_s: float) -> bool:
        """Waits for `timeout_s` at most. Returns True once the daemon serves, or cannot: failure() tells which."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        return bool(poll.poll(timeout_s * 1000))

    def failure(self) -> DaemonUnavailableError | None:
        """Returns why the launch failed, or None when a daemon serves, or may. To be called after wait()."""
        assert self._process.stdout is not None
        said = self._process.stdout.read().decode("utf-8", "replace").strip()
        code = self._process.wait() if os.getpid() == self._owner else None
        self.leave()
        # Of another's child nobody tells the exit code; one that serves says nothing.
        if code == 0 or (code is None and not said):
            return None
        how = f" (exit {code})" if code is not None else ""
        return DaemonUnavailableError(f"the daemon did not start{how}: {said}; {what_it_says(self._paths)}")

    def end(self) -> None:
        """Kills the process that starts the daemon: a daemon that has detached itself by now goes on."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        if os.getpid() == self._owner:
            self._process.wait()
        self.leave()

    def leave(self) -> None:
        """Leaves the launch to itself, and closes its descriptors. Whoever started it reaps it in the end.
        Idempotent."""
        assert self._process.stdout is not None
        if self._pidfd >= 0:
            self._process.stdout.close()
            os.close(self._pidfd)
            self._pidfd = -1
        if os.getpid() != self._owner:
            # In a fork: it is the parent's child.
            self._process.returncode = 0


def _file_of(content: bytes) -> int:
    fd = os.memfd_create("prefetchd-environment", os.MFD_CLOEXEC)
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
