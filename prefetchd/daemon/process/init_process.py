"""Has the daemon be a child of a container's first process, which reaps orphans and hands on signals.

The first process of a PID namespace is given all that is orphaned in there, whoever has started it. A daemon ends what
is orphaned below it (decision 0101), so it must not be that process. What the first process does is what tini and
`docker run --init` do.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

HANDED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
MEANT_FOR = ("LISTEN_PID", "WATCHDOG_PID")
"""Variables of a service manager that hold the number of the process that they are meant for."""


def leave_first_process() -> None:
    """Returns in a child if this process is the first of its PID namespace, which stays as that child's parent and ends
    as it does. Does nothing elsewhere. To be called while there is no other thread."""
    if os.getpid() == 1:
        # Before the fork: whatever comes from here on waits until it is handed on.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*HANDED_ON, signal.SIGCHLD})
        child = os.fork()
        if child:
            _look_after(child)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for name in MEANT_FOR:
            if os.environ.get(name) == "1":
                os.environ[name] = str(os.getpid())


def _look_after(child: int) -> NoReturn:
    while True:
        number = signal.sigwait({*HANDED_ON, signal.SIGCHLD})
        if number != signal.SIGCHLD:
            # Not reaped yet, so the number is the child's.
            os.kill(child, number)
            continue
        while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            pid, status = ended
            if pid == child:
                code = os.waitstatus_to_exitcode(status)
                # As shells say it.
                os._exit(code if code >= 0 else 128 - code)
