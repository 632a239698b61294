"""Holds an environment zygote for the daemon. Runs in the daemon."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess

from prefetchd.processes.bootstrap import BOOTSTRAP, ENVIRONMENT
from prefetchd.processes.environment import variables_at_start
from prefetchd.processes.process_exit import UNEXPLAINED, ProcessExit
from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.child_output import OnOutput
from prefetchd.supervisor.child_process import ChildProcess, OnEnd, OnMessage
from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.program_layout import Environment

REAP_DEADLINE_S = 5.0


class EnvironmentZygote:
    """One process in a trainer's environment, and the hosts that it has forked or will fork."""

    def __init__(
        self,
        watcher: Watcher,
        environment: Environment,
        on_message: OnMessage,
        on_end: OnEnd,
        on_output: OnOutput,
        *,
        nice: int,
    ) -> None:
        """Executes the zygote. Raises OSError."""
        self.hosts: set[int] = set()
        self.unused_since_s: float | None = None
        with contextlib.ExitStack() as undoing:
            self.note = WorkerStatusFile()
            undoing.callback(self.note.close)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undoing.callback(ours.close)
            with theirs:
                output, into = os.pipe()
                undoing.callback(os.close, output)
                try:
                    self._process = self._execute(environment, theirs, into)
                finally:
                    os.close(into)
            pid = self._process.pid
            # Undone in reverse: killed, then waited for, so that no child is left behind an error.
            undoing.callback(self._process.wait, REAP_DEADLINE_S)
            undoing.callback(self._process.kill)
            if nice:
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, pid, nice)
            pidfd = os.pidfd_open(pid)
            undoing.pop_all()
        self.child = ChildProcess(watcher, ours, pid, pidfd, output, on_message, on_end, on_output)

    def _execute(self, environment: Environment, theirs: socket.socket, into: int) -> subprocess.Popen[bytes]:
        command = [environment.executable, b"-c", BOOTSTRAP.encode(), json.dumps(list(environment.sys_path)).encode()]
        command += [ENVIRONMENT.encode(), str(os.getpid()).encode(), str(theirs.fileno()).encode()]
        command += [str(self.note.fd).encode()]
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=into,
            stderr=into,
            pass_fds=[theirs.fileno(), self.note.fd],
            cwd="/",
            env=variables_at_start(environment),
            # What the user's code sends to its process group reaches neither us nor other environments.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def reap(self) -> ProcessExit:
        """Waits a while for the zygote, which has ended or is about to. Returns how it ended."""
        self.note.close()
        try:
            code = self._process.wait(REAP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            return UNEXPLAINED
        return ProcessExit.from_returncode(code)
