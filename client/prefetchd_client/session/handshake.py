"""Handshake begins a loader's session: it says what is wanted, and what makes the batches: a fork, or a program."""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
from typing import Any

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.errors import StreamFailedError
from prefetchd.wire.framing import close_all
from prefetchd.wire.messages import PROTOCOL_VERSION, Hello, Program
from prefetchd.wire.process_environment import current_environment
from prefetchd.wire.runtime_paths import RuntimePaths, make_private
from prefetchd.wire.stream_spec import StreamSpec, encode_spec
from prefetchd_client.batches.attachment import Attachment
from prefetchd_client.caller_warnings import warn_caller
from prefetchd_client.connection.autostart import connect, connect_or_start, reap_launches
from prefetchd_client.connection.connection import Connection
from prefetchd_client.connection.reconnection import Reconnection
from prefetchd_client.forking.trainer_fork import ForkRequest, TrainerFork, reap
from prefetchd_client.own_version import VERSION
from prefetchd_client.program.program_pickle import pickle_program, write_program
from prefetchd_client.session.cursors import Cursors

NO_FORK = (
    "no process can be forked ({}): the workers of stream {!r} are started from an interpreter of their own, which "
    "takes some seconds, and memory of its own"
)

CHANGED = (
    "the dataset of stream {!r} has been changed since its batches were begun, and no process has it as it was then: "
    "its other batches would be of another dataset. Make the loader again"
)

TOO_FEW_WORKERS = (
    "num_workers={}, but the daemon allows {} busy workers: `[daemon] workers` of its configuration, or --workers of "
    "`prefetchd run`, bounds them"
)


class Handshake:
    """Introduces a loader to each daemon that its session meets, and says the same to all. `parts` is the program,
    `prepared` its pickle if there is one already; it is used once. With a `fork_request` this process is forked
    instead."""

    def __init__(
        self,
        paths: RuntimePaths,
        spec: StreamSpec,
        parts: dict[str, Any],
        prepared: tuple[bytes, list[memoryview]] | None = None,
        *,
        shared: bool,
        fork_request: ForkRequest | None = None,
    ) -> None:
        self._paths = paths
        self._spec = spec
        self._parts = parts
        self.shared = shared
        self._prepared = prepared
        self._fork_request = fork_request
        self._fork: TrainerFork | None = None
        self._is_warned = False

    @property
    def forks(self) -> bool:
        """True when this process is to be forked."""
        return self._fork_request is not None

    @property
    def fork(self) -> TrainerFork | None:
        """The latest fork, or None."""
        return self._fork

    def reach(self) -> tuple[socket.socket, bool]:
        """Returns a connection, and whether a daemon is at its other end by now: else a fork of this process looks for
        one. Raises DaemonUnavailableError, CallerError."""
        if self._fork_request is None:
            return connect_or_start(self._paths), True
        sock = connect(self._paths)
        if sock is not None:
            return sock, True
        make_private(self._paths.socket.parent)
        # Before anything else: it takes longer than all that a fork is.
        search = Reconnection(self._paths, supervised=False)
        if (sock := search.step()) is not None:
            # Somebody else's daemon has come in between.
            return sock, True
        try:
            self._fork, session = self._fork_request.begin(search)
        except OSError as error:
            # Nobody else goes on with it.
            search.close()
            self._cannot_fork(error)
            return connect_or_start(self._paths), True
        assert session is not None
        self._ask_if_shared()
        return session, False

    def hello(self, stream: str, cursors: Cursors, attachment: Attachment | None, *, fresh: bool = False) -> Hello:
        """Returns the Hello: what is wanted and, for a daemon that does not know us any more, where we stand."""
        return Hello(
            PROTOCOL_VERSION,
            "trainer",
            VERSION,
            os.getpid(),
            stream,
            self._spec.fingerprint if not self.forks else self._fork.fingerprint if self._fork is not None else "",
            encode_spec(self._spec),
            self.shared,
            cursors=cursors.as_rows(),
            held=attachment.holds() if attachment is not None else (),
            fresh=fresh,
            consumer=attachment.consumer if attachment is not None else -1,
            ring=attachment.ring.header.created_ns if attachment is not None else 0,
            forks=self.forks,
            ahead=cursors.ahead.ahead,
            why=cursors.ahead.why,
        )

    def may_have(self, workers: int) -> None:
        """Takes how many busy workers the daemon allows the stream. Warns, once, when more were asked for."""
        # Shards take turns, however few make them.
        asked = self._spec.workers if self._spec.order != "iterable" else 0
        if asked > workers > 0 and not self._is_warned:
            self._is_warned = True
            warn_caller(TOO_FEW_WORKERS.format(asked, workers))

    def prepare_fork(self) -> None:
        """Forks this process before hello(), if it is to be forked: from here on there is a fork, or there will be
        none."""
        if self._fork_request is not None and self._fork is None:
            try:
                self._fork, _ = self._fork_request.begin()
                self._ask_if_shared()
            except OSError as error:
                self._cannot_fork(error)

    def _ask_if_shared(self) -> None:
        if self.shared:
            # Whoever else names the stream waits until it is known.
            self.ask_for_fingerprint()

    def quick_fingerprint(self) -> str:
        """Returns the program's fingerprint, as it is now, if it is known or soon taken; else an empty string. To be
        called only while the loader is being made: afterwards the program may not be what was forked."""
        if self._fork_request is None:
            return ""
        known = self._fork.fingerprint if self._fork is not None else ""
        return known or self._fork_request.quick_fingerprint()

    def ask_for_fingerprint(self) -> None:
        """Has the fork take its fingerprint now: the daemon waits for it, or somebody will."""
        if self._fork is not None:
            self._fork.ask()

    def hand_over_fork(self, connection: Connection) -> None:
        """Sends the fork, a new one if the former one is dead; in its place, where none can be had, the program. After
        hello(), or when the daemon asks for it. Raises UnpicklableError and NoSpaceError, and StreamFailedError for a
        program that is another one by now."""
        found = self._fork.hand_over() if self._fork is not None else None
        if found is None and self._fork_request is not None:
            try:
                former = self._fork
                if former is not None and not former.fingerprint and self._fork_request.has_changed():
                    # What the former one has made is of a program that nobody knows the fingerprint of.
                    raise StreamFailedError(CHANGED.format(self._spec.name))
                self._fork, _ = self._fork_request.begin()
                # Nothing is made by it before it is known to be of the same program.
                self._fork.ask()
                found = self._fork.hand_over()
                if former is not None:
                    former.close()
            except OSError as error:
                self._cannot_fork(error)
        if found is None:
            self.hand_over(connection)
            return
        message, fds = found
        try:
            kill_point("client.fork.unsent")
            connection.send_with_fds(message, fds)
            kill_point("client.fork.sent")
        finally:
            close_all(fds)

    def hand_over(self, connection: Connection) -> None:
        """Sends the program. Raises UnpicklableError and NoSpaceError."""
        pickled, buffers = self._prepared or pickle_program(self._parts, self._spec.batch_size, shares=True)
        self._prepared = None
        name, fd, program_bytes = write_program(self._paths, current_environment(), pickled, buffers)
        try:
            kill_point("client.program.unsent")
            connection.send_with_fds(Program(name, program_bytes), [fd])
            kill_point("client.program.sent")
        finally:
            os.close(fd)

    def close(self) -> None:
        """Ends the session's part in its fork, which is the daemon's alone from now on. Idempotent."""
        if self._fork is not None:
            self._fork.close()
        reap()
        reap_launches()

    def _cannot_fork(self, error: OSError) -> None:
        assert self._fork_request is not None
        former = self._fork.fingerprint if self._fork is not None else ""
        print(f"prefetchd: {NO_FORK.format(error.strerror, self._spec.name)}", file=sys.stderr)
        # Without a fork nobody else takes the fingerprint. Another one than the fork's is another program: its batches
        # must not be mixed.
        self._spec = dataclasses.replace(self._spec, fingerprint=self._fork_request.fingerprint())
        self._fork_request = None
        if former not in ("", self._spec.fingerprint):
            raise StreamFailedError(CHANGED.format(self._spec.name))
