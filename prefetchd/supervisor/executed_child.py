"""Executes an interpreter that becomes a child of the daemon, with a control socket, a pidfd and an output pipe. Runs
in the daemon."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence

from prefetchd.processes.process_exit import UNEXPLAINED, ProcessExit

REAP_DEADLINE_S = 5.0


class ExecutedChild:
    """A process that was started anew, and the daemon's ends of what it has; whoever watches these closes them.
    `reap()` is called once it has ended."""

    def __init__(
        self,
        arguments: Callable[[int], Sequence[bytes]],
        variables: Mapping[bytes, bytes],
        pass_fds: Sequence[int] = (),
        *,
        nice: int,
    ) -> None:
        """Executes `arguments(its end of the control socket)`, with these variables and descriptors and no others.
        Raises OSError."""
        with contextlib.ExitStack() as undoing:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undoing.callback(ours.close)
            with theirs:
                output, into = os.pipe()
                undoing.callback(os.close, output)
                try:
                    self._process = subprocess.Popen(
                        arguments(theirs.fileno()),
                        stdin=subprocess.DEVNULL,
                        stdout=into,
                        stderr=into,
                        pass_fds=[theirs.fileno(), *pass_fds],
                        cwd="/",
                        env=dict(variables),
                        # What the user's code sends to its process group reaches neither us nor other environments.
                        start_new_session=True,
                    )
                finally:
                    os.close(into)
            self.pid = self._process.pid
            # Undone in reverse: killed, then waited for, so that no child is left behind an error.
            undoing.callback(self._process.wait, REAP_DEADLINE_S)
            undoing.callback(self._process.kill)
            if nice:
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, self.pid, nice)
            self.pidfd = os.pidfd_open(self.pid)
            undoing.pop_all()
        self.sock, self.output = ours, output

    def reap(self) -> ProcessExit:
        """Waits a while for the process, which has ended or is about to. Returns how it ended."""
        try:
            code = self._process.wait(REAP_DEADLINE_S)
        except subprocess.TimeoutExpired:
            return UNEXPLAINED
        return ProcessExit.from_returncode(code)
