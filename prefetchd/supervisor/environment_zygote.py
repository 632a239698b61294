"""Holds an environment zygote for the daemon. Runs in the daemon."""

from __future__ import annotations

import contextlib
import json
import os

from prefetchd.processes.bootstrap import BOOTSTRAP, ENVIRONMENT
from prefetchd.processes.environment import variables_at_start
from prefetchd.processes.process_exit import ProcessExit
from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.child_output import OnOutput
from prefetchd.supervisor.child_process import ChildProcess, OnEnd, OnMessage
from prefetchd.supervisor.executed_child import ExecutedChild
from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.program_layout import Environment


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
            started = self._executed = ExecutedChild(
                lambda control: self._command(environment, control),
                variables_at_start(environment),
                [self.note.fd],
                nice=nice,
            )
            undoing.pop_all()
        self.child = ChildProcess(
            watcher, started.sock, started.pid, started.pidfd, started.output, on_message, on_end, on_output
        )

    def _command(self, environment: Environment, control: int) -> list[bytes]:
        command = [environment.executable, b"-c", BOOTSTRAP.encode(), json.dumps(list(environment.sys_path)).encode()]
        command += [ENVIRONMENT.encode(), str(os.getpid()).encode(), str(control).encode()]
        return [*command, str(self.note.fd).encode()]

    @property
    def pid(self) -> int:
        return self._executed.pid

    def reap(self) -> ProcessExit:
        """Waits a while for the zygote, which has ended or is about to. Returns how it ended."""
        self.note.close()
        return self._executed.reap()
