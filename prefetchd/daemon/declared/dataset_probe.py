"""Runs the process that looks at one declared stream: the daemon itself imports nothing of the user's. Decision 0040
has the reasons."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import subprocess
import sys
from typing import Protocol

from prefetchd.daemon.config.daemon_config import StreamConfig
from prefetchd.processes.environment import DENIED
from prefetchd.processes.process_exit import ProcessExit
from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.child_process import ChildProcess
from prefetchd.wire.framing import Descriptors
from prefetchd.wire.messages import Declared, LoadFailed, Message, TrainerEnvironment
from prefetchd.wire.runtime_paths import RuntimePaths

# As -c, with main()'s arguments. Importing the client's package is importing torch: the environment is told before, and
# without the gc it takes a fifth less.
BOOTSTRAP = (
    "import gc, sys; gc.disable(); "
    "from prefetchd.wire.process_environment import tell_environment; tell_environment(int(sys.argv[2])); "
    "from prefetchd_client.declared import main; gc.freeze(); gc.enable(); main(*sys.argv[1:])"
)
CLOSE_DEADLINE_S = 5.0


class ProbeEvents(Protocol):
    """Receives what a DatasetProbe finds: one of declared, failed and, when it has said nothing, died, once, unless it
    was closed."""

    def environment_known(self, environment: bytes) -> None:
        """The workers will run in this environment. Said long before the rest, where it is said at all."""

    def declared(self, message: Declared, fd: int) -> None:
        """The process has described the stream; the receiver owns `fd`."""

    def failed(self, why: str, error: bytes) -> None:
        """The process has found that there is no such stream."""

    def died(self, how: ProcessExit) -> None: ...

    def printed(self, lines: list[str], left_out: int) -> None: ...


class DatasetProbe:
    """Runs the process until it has said what the stream is, or that there is none."""

    def __init__(
        self,
        stream: StreamConfig,
        directory: str,
        paths: RuntimePaths,
        watcher: Watcher,
        events: ProbeEvents,
    ) -> None:
        """Starts the process, in `directory` unless the stream declares another. Raises OSError when it cannot be
        started."""
        self._events = events
        self._is_over = False
        with contextlib.ExitStack() as undoing, contextlib.ExitStack() as theirs_alone:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undoing.callback(ours.close)
            theirs_alone.callback(theirs.close)
            output, into = os.pipe()
            undoing.callback(os.close, output)
            theirs_alone.callback(os.close, into)
            request = os.memfd_create("declared")
            theirs_alone.callback(os.close, request)
            os.write(request, json.dumps(declaration(stream)).encode())
            os.lseek(request, 0, os.SEEK_SET)
            self._process = subprocess.Popen(
                [stream.python or sys.executable, "-c", BOOTSTRAP]
                + [str(os.getpid()), str(theirs.fileno()), str(paths.socket)],
                stdin=request,
                stdout=into,
                stderr=into,
                pass_fds=[theirs.fileno()],
                cwd=stream.cwd or directory or "/",
                env=variables(stream),
                # What the user's code sends to its process group does not reach us.
                start_new_session=True,
            )
            undoing.callback(self._reap)
            undoing.callback(self._process.kill)
            pid = self._process.pid
            pidfd = os.pidfd_open(pid)
            undoing.pop_all()
        self._child = ChildProcess(watcher, ours, pid, pidfd, output, self._said, self._ended, events.printed)

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Ends the process, whatever it does, and does not wait for that. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self._child.kill()
            self._child.forsake(self._reap)

    def wait(self) -> None:
        """Waits until the process is dead. After close(), when the loop runs no more."""
        self._child.close()
        self._reap()

    def _reap(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_DEADLINE_S)

    def _said(self, message: Message, fds: Descriptors) -> None:
        if isinstance(message, Declared) and len(fds) == 1:
            self.close()
            (fd,) = fds.take()
            self._events.declared(message, fd)
            return
        if isinstance(message, TrainerEnvironment):
            self._events.environment_known(message.environment)
        elif isinstance(message, LoadFailed):
            self.close()
            self._events.failed(message.message, message.error)

    def _ended(self, _: ProcessExit) -> None:
        self._is_over = True
        self._child.close()
        self._reap()
        self._events.died(ProcessExit.from_returncode(self._process.returncode or 0))


def declaration(stream: StreamConfig) -> dict[str, object]:
    """Returns what the process is told of the stream, for JSON. The variables are its own by then."""
    return {field.name: getattr(stream, field.name) for field in dataclasses.fields(stream) if field.name != "env"}


def variables(stream: StreamConfig) -> dict[str, str]:
    """Returns the environment in which the stream's processes run."""
    denied = {name.decode() for name in DENIED}
    return {name: value for name, value in os.environ.items() if name not in denied} | dict(stream.env)
