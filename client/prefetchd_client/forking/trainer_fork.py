"""ForkRequest forks this process, and TrainerFork is this process's end of the fork. The fork makes a loader's batches:
everything the dataset holds is in its memory already.

    client                         forked zygote (prefetchd.workers.forked_zygote)        daemon
      |--fork------------------------->|
      |--Hello, Forked (its descriptors)----------------------------------------------------->|
      |                                |<------------------------------- workers are asked for |
      |<------- Identified (owner) ----|--------------------------------- Identified --------->|
      |--TellFingerprint (owner) ----->|  somebody waits for that
      |--Serve (owner) --------------->|  when the daemon has died: another one's control socket

The rules, whose reasons are in decision 0090:

1. A fork serves one daemon at a time, and outlives it. Its control socket and its output are given away once
   (`hand_over`). For another daemon there are new ones, of which the fork is sent its ends with Serve.
2. Where no daemon answers, the fork takes over the search for one, or its start, and introduces it to this process: by
   one end of a socket pair, which the trainer may talk into before there is a daemon. This process abandons the search.
3. A fork tells once what its program is (Identified). If that has no fingerprint, the fork will never know it.
4. It takes the fingerprint 0.2 seconds after the first worker was forked, since until then the first batches need the
   CPU; at once when somebody asks, when the trainer is gone, or when another daemon is served.
5. Descriptors have one owner: `ours` are closed unless the fork was made, `theirs` always, since the child has its own.
6. A fork that has ended is reaped when the next one is made and when a loader is closed. A fork of this process closes
   the pidfds of its parent's forks, and reaps none.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import select
import socket
import sys
from collections.abc import Callable
from typing import Any

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import close_all, disclose, receive_with_fds, send
from prefetchd.wire.messages import Forked, Identified, Serve, TellFingerprint
from prefetchd.wire.process_environment import current_environment
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd_client.connection.reconnection import Reconnection
from prefetchd_client.forking.fork_hooks import run_fork_hooks
from prefetchd_client.forking.fork_work import ForkWork
from prefetchd_client.quiet import quiet

_unreaped: dict[int, int] = {}
"""Pidfds of the forks that have not been waited for, by pid."""


@dataclasses.dataclass(frozen=True)
class ForkRequest:
    """Describes what a fork is to be made for; begin() may be called again when one has died. `forked` is called after
    each fork. `quick_fingerprint` takes the program's fingerprint in this process, or returns an empty string if that
    takes long. `has_changed` tells whether somebody is seen to have changed the program since it was first forked."""

    paths: RuntimePaths
    spec: StreamSpec
    parts: dict[str, Any]
    fingerprint: Callable[[], str]
    found: Callable[[], bytes]
    forked: Callable[[], None]
    quick_fingerprint: Callable[[], str] = str
    has_changed: Callable[[], bool] = bool

    def begin(self, search: Reconnection | None = None) -> tuple[TrainerFork, socket.socket | None]:
        """Forks this process. A `search` is the fork's from then on (rule 2): then the second result is a connection
        that will be that daemon's, and may be talked into at once. Raises OSError."""
        # Here: who forks nothing needs nothing of it.
        from prefetchd.workers.birth import Birth
        from prefetchd.workers.forked_zygote import run_forked_zygote
        from prefetchd.workers.program import Program as WorkersProgram
        from prefetchd.workers.state_readers import kept_state_readers

        program = WorkersProgram(**self.parts, once=self.spec.order == "iterable")
        environment, readers = current_environment(), kept_state_readers()
        work = ForkWork(self.paths, self.parts, self.spec.batch_size, environment, self.fingerprint, self.found)
        reap()
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            owner, owner_end = _pair(ours, theirs)
            control_end, control = _pair(ours, theirs)
            session, session_end = _pair(ours, theirs) if search is not None else (None, None)
            output, output_end = os.pipe()
            ours.callback(os.close, output)
            theirs.callback(os.close, output_end)
            trainer = os.pidfd_open(os.getpid())
            theirs.callback(os.close, trainer)
            _flush()
            kill_point("client.fork.before")
            # DataLoader's forks of threaded processes say nothing, either.
            with quiet(DeprecationWarning):
                pid = os.fork()
            # The child does not return from run_forked_zygote(): the ExitStacks, and all above them, are the parent's.
            if pid == 0:
                run_forked_zygote(
                    Birth(
                        spec=self.spec,
                        program=program,
                        work=work,
                        control=control,
                        owner=owner_end,
                        output=output_end,
                        trainer=trainer,
                        search=search,
                        session=session_end,
                        state_readers=readers,
                        mark=self.paths.process_mark,
                        prepare=run_fork_hooks,
                    )
                )
            self.forked()
            if search is not None:
                search.abandon()
            _unreaped[pid] = os.pidfd_open(pid)
            fork = TrainerFork(pid, os.dup(_unreaped[pid]), owner, control_end, output)
            ours.pop_all()
        kill_point("client.fork.after")
        return fork, session


class TrainerFork:
    """Holds the trainer's end of a fork of itself. One thread at a time."""

    def __init__(self, pid: int, pidfd: int, owner: socket.socket, control: socket.socket, output: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._owner = owner
        self._for_daemon: tuple[socket.socket, int] | None = (control, output)
        self._identified: Identified | None = None
        # Rule 3: it will never know what its program is.
        self._is_mute = False
        self._is_asked = False

    @property
    def fingerprint(self) -> str:
        """The program's fingerprint, if it is known by now; else an empty string."""
        found = self.identified()
        return found.fingerprint if found is not None else ""

    def ask(self) -> None:
        """Has the fork take its fingerprint now, not when the first batches are made. Does not block. Idempotent."""
        if not self._is_asked and self._owner.fileno() >= 0:
            self._is_asked = True
            # Its end is seen elsewhere.
            with contextlib.suppress(OSError):
                send(self._owner, TellFingerprint())

    def identified(self, timeout_s: float = 0.0) -> Identified | None:
        """Returns what the fork has found its program to be; None when that has not come within `timeout_s`, or never
        will. Asks the fork when it may wait."""
        if timeout_s > 0 and self._identified is None:
            self.ask()
        if self._identified is None and not self._is_mute and _can_be_read(self._owner, timeout_s):
            with contextlib.suppress(OSError, ProtocolError):
                message, fds = receive_with_fds(self._owner)
                if message is not None:
                    message, fds = disclose(message, fds)
                close_all(fds)
                if isinstance(message, Identified) and message.fingerprint:
                    self._identified = message
                elif isinstance(message, Identified):
                    self._is_mute = True
        return self._identified

    def hand_over(self) -> tuple[Forked, list[int]] | None:
        """Returns the message for a daemon and the descriptors to go with it, which the caller closes: those that the
        fork was made with, or new ones for the next daemon (rule 1). Returns None when the fork is dead."""
        if self._pidfd < 0 or _has_ended(self._pidfd):
            return None
        if self._for_daemon is None:
            self._serve_another()
        if self._for_daemon is None:
            return None
        (control, output), self._for_daemon = self._for_daemon, None
        return Forked(self.pid), [os.dup(self._pidfd), control.detach(), output]

    def _serve_another(self) -> None:
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            control_end, control = _pair(ours, theirs)
            output, output_end = os.pipe()
            ours.callback(os.close, output)
            theirs.callback(os.close, output_end)
            # Received now: what it has said before is not lost.
            self.identified()
            try:
                send(self._owner, Serve(), [control.fileno(), output_end])
            except OSError:
                return
            self._for_daemon = control_end, output
            ours.pop_all()

    def close(self) -> None:
        """Leaves the fork to the daemon alone from now on. Idempotent."""
        self._owner.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        if self._for_daemon is not None:
            self._for_daemon[0].close()
            os.close(self._for_daemon[1])
            self._for_daemon = None
        reap()


def reap() -> None:
    """Reaps the forks that have ended. Does not block. Several threads may call it at once."""
    for pid in list(_unreaped):
        # Whoever has taken it out sees to it.
        pidfd = _unreaped.pop(pid, None)
        if pidfd is None:
            continue
        if _has_ended(pidfd):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            os.close(pidfd)
        else:
            _unreaped[pid] = pidfd


def _after_fork_in_child() -> None:
    """Closes the pidfds that a fork inherits (rule 6)."""
    close_all(list(_unreaped.values()))
    _unreaped.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _pair(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    """Returns a pair of sockets: the first is closed with `ours`, the second with `theirs`."""
    mine, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.callback(mine.close)
    theirs.callback(other.close)
    return mine, other


def _can_be_read(sock: socket.socket, timeout_s: float) -> bool:
    if sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _has_ended(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _flush() -> None:
    """Flushes stdout and stderr: what is in our buffers is not to come out of the fork a second time."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()
