"""Runs a zygote that was forked from the trainer: the program is in its memory, and nothing was imported or pickled.

    trainer --fork--> forked zygote --fork--> worker, worker, planner
                           |--fork--> a helper, for what takes long: identify the program, write it
                           |--fork--> a spare, where nobody else has the program: it is forked from when this one dies

The rules, whose reasons are in decision 0090:

1. The zygote has two masters. The daemon is at the other end of `control`: it asks for workers. The trainer is at the
   other end of `owner`. The zygote ends when both are gone. The daemon ends it at once, with SIGKILL, when nobody needs
   it.
2. When the daemon dies the zygote ends its workers and what these have started, before another daemon may serve their
   ring. Then the trainer may hand over another daemon's control socket (Serve), so that a stream goes on with the
   program as it was when the loader was made. The new daemon is told all that the old one was: Ready, the fingerprint,
   and that the program cannot be pickled.
3. The fingerprint is taken once: IDENTIFY_AFTER_S after the first worker was forked, and at the latest
   IDENTIFY_WITHIN_S after the zygote was. It is taken at once when the trainer asks for it (TellFingerprint), as where
   old batches may be what is wanted, when the trainer is gone while a daemon is served, and when another daemon is
   served: until it is known, nobody can say later what the batches were made of.
4. What takes long is done in helpers, which are forks as well. They answer through the zygote: the daemon may be
   another one by then.
5. A spare is forked where nobody else may come to have the program: it cannot be pickled, or it is too large to be
   written and the trainer lives. There is at most one spare for each daemon that is served. It does nothing until it
   gets UseNote; then it serves, and forks a spare of its own. It has no trainer, and takes no fingerprint.
6. A process that is forked from here gives up what is the zygote's alone: masters, helpers, the search for a daemon
   (`_give_up_own`). Else a master's end would not be seen as long as that process lives.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.processes.attempts import Attempts
from prefetchd.processes.bootstrap import WORKER
from prefetchd.processes.orphans import become_subreaper, reap_strangers
from prefetchd.processes.stack_dumps import answer_with_stacks
from prefetchd.wire.errors import PrefetchdError, ProtocolError, UnpicklableError
from prefetchd.wire.framing import close_all, receive_with_fds, send
from prefetchd.wire.messages import (
    Identified,
    Introduce,
    Message,
    Ready,
    Serve,
    Spare,
    SpawnWorker,
    TellFingerprint,
    TooLarge,
    Unpicklable,
    UseNote,
    WriteProgram,
)
from prefetchd.workers import detaching
from prefetchd.workers.birth import Birth, DaemonSearch, leave_trainer
from prefetchd.workers.process_setup import die_first_for_memory, end_after
from prefetchd.workers.program_files import reopen_files
from prefetchd.workers.program_size import pickle_estimate, room_bytes
from prefetchd.workers.zygote import connect_anew, serve_worker
from prefetchd.workers.zygote_children import Children
from prefetchd.workers.zygote_helpers import Helpers, send_long

IDENTIFY_AFTER_S = 0.2
"""How long after the first worker was forked the fingerprint is taken: for large data that takes the CPU that the first
batches need."""
IDENTIFY_WITHIN_S = 10.0
"""How long after the fork the fingerprint is taken at the latest: nobody may have asked for a worker because nobody
knows the fingerprint."""

_DIED = "the processes died that were to pickle it"


def run_forked_zygote(birth: Birth) -> None:
    """Becomes a forked zygote, in the child of a fork of the trainer: serves until both masters are gone. Never
    returns."""

    def serve() -> None:
        leave_trainer(birth)
        become_subreaper()
        kill_point("zygote.forked")
        ForkedZygote(birth).serve()

    end_after(serve)


class ForkedZygote:
    """The loop of a forked zygote. One thread, and no call that blocks but poll(2)."""

    def __init__(self, birth: Birth) -> None:
        self._spec = birth.spec
        self._program = birth.program
        self._work = birth.work
        self._control: socket.socket | None = birth.control
        self._owner: socket.socket | None = birth.owner
        self._trainer = birth.trainer
        self._search = birth.search
        self._session = birth.session
        self._children = Children(birth.control)
        self._attempts = Attempts()
        self._helpers = Helpers(self._attempts, self._give_up_own, self._helped)
        self._identified: Identified | None = None
        self._identifies_at_s: float | None = time.monotonic() + IDENTIFY_WITHIN_S
        self._unpicklable: Unpicklable | None = None
        self._is_spare = False
        self._has_spare = False
        self._spares: set[int] = set()

    def serve(self) -> None:
        """Serves until both masters are gone. Blocks."""
        self._tell(Ready())
        self._wait_on_masters()

    def _identify(self) -> None:
        """Takes the fingerprint by rule 3. Idempotent."""
        if self._identifies_at_s is not None:
            self._identifies_at_s = None
            never = partial(self._helped, Identified(""), [])
            self._helpers.start("take the dataset's fingerprint", lambda: (self._work.identify(), []), never)

    def _wait_on_masters(self) -> None:
        while self._control is not None or self._owner is not None:
            self._wait()
            reap_strangers(self._own | self._workers)
        self._children.end_strangers(self._own)

    @property
    def _own(self) -> set[int]:
        """The pids of children that are no workers."""
        return self._helpers.pids | self._spares

    @property
    def _workers(self) -> set[int]:
        return self._children.pids

    # --- waiting ---

    def _wait(self) -> None:
        poll = select.poll()
        takers = self._takers()
        for fd in takers:
            poll.register(fd, select.POLLIN)
        pauses_s = [self._attempts.pause_s, self._search.pause_s if self._search is not None else None]
        if self._identifies_at_s is not None:
            pauses_s.append(max(0.0, self._identifies_at_s - time.monotonic()))
        timeout_s = min((each for each in pauses_s if each is not None), default=None)
        # One at a time: what is done about one descriptor may close another.
        for fd, _ in poll.poll(None if timeout_s is None else timeout_s * 1000)[:1]:
            takers[fd]()
        self._attempts.again()
        if self._identifies_at_s is not None and self._identifies_at_s <= time.monotonic():
            self._identify()
        if self._search is not None:
            self._look_for_daemon(self._search)

    def _takers(self) -> dict[int, Callable[[], None]]:
        """Maps each descriptor to what is to be done when it can be read."""
        found = self._helpers.takers()
        for pidfd in self._children.pidfds:
            found[pidfd] = partial(self._children.reap, pidfd)
        if self._control is not None:
            found[self._control.fileno()] = self._daemon_says
        if self._owner is not None:
            found[self._owner.fileno()] = self._owner_says
            found[self._trainer] = self._owner_is_gone
        return found

    def _look_for_daemon(self, search: DaemonSearch) -> None:
        sock = search.step()
        if sock is not None:
            assert self._session is not None
            with sock, contextlib.suppress(OSError):
                send(sock, Introduce(), [self._session.fileno()])
            kill_point("zygote.introduced")
        if sock is not None or search.error is not None or self._owner is None:
            # The trainer sees the end of its connection if there was none, and looks for itself.
            search.close()
            self._search = None
            if self._session is not None:
                self._session.close()
                self._session = None

    # --- the trainer ---

    def _owner_says(self) -> None:
        assert self._owner is not None
        message, fds = _received(self._owner)
        if message is None:
            self._owner_is_gone()
        elif isinstance(message, Serve) and len(fds) == 2:
            self._serve_another(*fds)
        else:
            if isinstance(message, TellFingerprint):
                self._identify()
            close_all(fds)

    def _owner_is_gone(self) -> None:
        assert self._owner is not None
        # What it has is the dead trainer's memory.
        die_first_for_memory()
        self._owner.close()
        self._owner = None
        os.close(self._trainer)
        if self._control is not None:
            self._identify()

    def _serve_another(self, control: int, output: int) -> None:
        if self._control is not None:
            # The trainer has seen the daemon's death first.
            self._daemon_is_gone()
        self._control = socket.socket(fileno=control)
        self._children = Children(self._control)
        detaching.redirect_output(output)
        os.close(output)
        # Rule 2: said anew, for this daemon knows nothing of it.
        self._tell(Ready())
        if self._identified is not None:
            self._tell(Identified(self._identified.fingerprint))
        self._identify()
        self._has_spare = False
        if self._unpicklable is not None:
            self._tell(self._unpicklable)
            self._fork_spare()
        kill_point("zygote.handed.on")

    # --- the daemon ---

    def _daemon_says(self) -> None:
        assert self._control is not None
        message, fds = _received(self._control)
        if message is None:
            self._daemon_is_gone()
        elif isinstance(message, UseNote) and len(fds) == 1:
            # It stays open as long as stacks may be asked for.
            answer_with_stacks(os.dup(fds[0]))
            if self._is_spare:
                self._is_spare = False
                self._tell(Ready())
                self._fork_spare()
        elif isinstance(message, SpawnWorker) and len(fds) == 1:
            self._fork_worker(message, fds[0])
        elif isinstance(message, WriteProgram):
            write = partial(self._write, message.limit_bytes)
            self._helpers.start("pickle the dataset", write, partial(self._helped, Unpicklable(_DIED), []))
        close_all(fds)

    def _daemon_is_gone(self) -> None:
        """Ends the daemon's workers (rule 2): nothing of it may write to a ring any more when another daemon serves
        that."""
        assert self._control is not None
        self._children.kill_all()
        # Nor is what its workers have started anybody's any more.
        self._children.end_strangers(self._own)
        self._control.close()
        self._control = None
        kill_point("zygote.daemon.gone")

    def _tell(self, message: Message, fds: Sequence[int] = ()) -> None:
        if self._control is not None:
            # Its end is seen when it is read from.
            with contextlib.suppress(OSError):
                send(self._control, message, fds)

    def _fork_worker(self, message: SpawnWorker, note_fd: int) -> None:
        worker_index, workers = message.worker_index, message.workers

        def serve(sock: socket.socket) -> None:
            self._give_up_own()
            connect_anew()
            serve_worker(sock, note_fd, self._program, self._spec, worker_index, workers)

        self._children.start(message.worker, serve, WORKER, note_fd, -1, b"")
        if self._identifies_at_s is not None:
            self._identifies_at_s = min(self._identifies_at_s, time.monotonic() + IDENTIFY_AFTER_S)

    def _give_up_own(self) -> None:
        """Gives up, in a forked child, what is not its own (rule 6)."""
        for sock in (self._owner, self._session, self._control):
            if sock is not None:
                sock.close()
        self._helpers.forget()
        self._attempts.forget()
        if self._owner is not None:
            os.close(self._trainer)

    # --- what takes long ---

    def _write(self, limit_bytes: int) -> tuple[Message, list[int]]:
        most_bytes = limit_bytes or room_bytes()
        program = self._program
        estimate_bytes = pickle_estimate({"dataset": program.dataset, "index_sampler": program.index_sampler})
        if estimate_bytes > most_bytes:
            return TooLarge(estimate_bytes), []
        try:
            return self._work.write(most_bytes)
        except UnpicklableError as error:
            # No advice: here it is carried all the same.
            return Unpicklable(error.why), []
        except PrefetchdError as error:
            return Unpicklable(str(error)), []

    def _helped(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, Identified):
            self._identified = message
            if self._owner is not None:
                with contextlib.suppress(OSError):
                    send_long(self._owner, message, [])
            message = Identified(message.fingerprint)
        self._tell(message, fds)
        if isinstance(message, Unpicklable):
            # Kept for the next daemon (rule 2). TooLarge is not: that daemon asks for itself.
            self._unpicklable = message
        # Without its trainer a large program takes memory that is about to be given back.
        alone = isinstance(message, Unpicklable) or (isinstance(message, TooLarge) and self._owner is not None)
        if alone and not self._has_spare:
            self._fork_spare()

    # --- the spare ---

    def _fork_spare(self) -> None:
        """Forks a spare (rule 5), as soon as a process can be had."""
        self._attempts.make("no process can be forked to have the dataset in reserve", self._try_to_fork_spare)

    def _try_to_fork_spare(self) -> None:
        with contextlib.ExitStack() as opened:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.enter_context(ours)
            opened.enter_context(theirs)
            output, into = os.pipe()
            opened.callback(close_all, [output, into])
            pid = os.fork()
            if pid == 0:
                end_after(partial(self._serve_as_spare, ours, theirs, output, into))
            # Where it cannot be told of, the end of its socket ends it.
            pidfd = os.pidfd_open(pid)
            opened.callback(os.close, pidfd)
            self._spares.add(pid)
            self._tell(Spare(pid), [pidfd, ours.fileno(), output])
            self._has_spare = True

    def _serve_as_spare(self, ours: socket.socket, control: socket.socket, unread: int, output: int) -> None:
        # It outlives the zygote that it was forked from, and that one's session.
        detaching.leave_session()
        become_subreaper()
        self._spares.clear()
        ours.close()
        os.close(unread)
        reopen_files()
        self._give_up_own()
        detaching.redirect_output(output)
        os.close(output)
        self._children = Children(control)
        self._control, self._owner, self._search, self._session = control, None, None, None
        self._is_spare, self._has_spare = True, False
        # The zygote that it was forked from has told what both are.
        self._identifies_at_s = None
        self._wait_on_masters()


def _received(sock: socket.socket) -> tuple[Message | None, list[int]]:
    """Receives a message. Returns None in its place when there is nobody at the other end, or nobody who makes
    sense."""
    try:
        return receive_with_fds(sock)
    except (OSError, ProtocolError):
        return None, []
