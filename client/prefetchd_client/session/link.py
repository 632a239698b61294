"""Link is a session's way to the daemon: reached at first and, without ever blocking, again whenever it is lost."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.errors import DaemonUnavailableError
from prefetchd.wire.framing import close_all
from prefetchd.wire.messages import (
    Deciding,
    Farewell,
    ForkWanted,
    Hello,
    Identified,
    Message,
    Refused,
    WaitNamed,
    Welcome,
)
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd_client.connection.autostart import what_it_says
from prefetchd_client.connection.connection import Connection, unexpected
from prefetchd_client.connection.reconnection import Reconnection
from prefetchd_client.own_version import meet_daemon
from prefetchd_client.session.handshake import Handshake
from prefetchd_client.session.remote_errors import refusal

ANSWER_TIMEOUT_S = 60.0
ATTEMPTS = 8
"""The number of daemons that may die on us one after another before a loader gives up."""


class Link:
    """Sends and receives as Connection does, over one connection after the other; a daemon that wants the program gets
    it. One thread at a time."""

    def __init__(self, paths: RuntimePaths, handshake: Handshake, hello: Callable[[], Hello]) -> None:
        """Reaches a daemon, says `hello` and waits for the `welcome`, unless the daemon has yet to start or to decide.
        Raises DaemonUnavailableError, DaemonRefusedError and other refusals, UnpicklableError, NoSpaceError."""
        self._paths = paths
        self._handshake = handshake
        self._supervised, self._managed, self._config = False, False, b""
        self._lost_s: float | None = None
        self._farewell = ""
        self._reconnection: Reconnection | None = None
        self._is_new = False
        self._has_helped = False
        self.returns = 0
        """The number of daemons that have welcomed us after the first."""
        self.welcome: Welcome | None = None
        """The daemon's answer, if it came at once; None when it is to be received yet."""
        for attempts_left in reversed(range(ATTEMPTS)):
            sock, is_answered = handshake.reach()
            self._connection = Connection(sock)
            try:
                handshake.prepare_fork()
                self._connection.send(hello())
                if handshake.forks:
                    handshake.hand_over_fork(self._connection)
                kill_point("client.hello.said")
                if is_answered:
                    self.welcome = self._first_answer()
                break
            except BaseException as error:
                # One that dies or stops may still have taken our connection: the next one will be another's.
                is_gone = isinstance(error, DaemonUnavailableError) and not self._connection.is_open
                self._connection.close()
                if not (is_gone and attempts_left):
                    handshake.close()
                    raise

    def _first_answer(self) -> Welcome | None:
        message = self._answer()
        # Of a stream that has a name of its own whoever asks may be told that it cannot have it: now, not later.
        while isinstance(message, (WaitNamed, ForkWanted, Deciding)):
            if isinstance(message, WaitNamed):
                print(f"prefetchd: {message.text}", file=sys.stderr)
            elif isinstance(message, ForkWanted):
                self._handshake.hand_over_fork(self._connection)
            else:
                self._help_to_decide(message)
                if not self._handshake.shared:
                    return None
            message = self._answer()
        if isinstance(message, Refused):
            raise refusal(message)
        if not isinstance(message, Welcome):
            raise unexpected(message)
        meet_daemon(message.software, is_first=True)
        self._welcomed(message)
        return message

    def _help_to_decide(self, message: Deciding) -> None:
        """Sends the fingerprint, where it can soon be taken here: the batches that are there may be what is wanted, and
        the fork is not waited for then. The fork tells it all the same, before it makes anything; but not at the same
        time."""
        if message.takes_fingerprint and not self._has_helped:
            self._has_helped = True
            fingerprint = self._handshake.quick_fingerprint()
            if fingerprint:
                self._connection.send(Identified(fingerprint))
                return
        self._handshake.ask_for_fingerprint()

    def _answer(self) -> Message:
        try:
            message, fds = self._connection.expect(ANSWER_TIMEOUT_S)
        except DaemonUnavailableError as silence:
            raise DaemonUnavailableError(f"{silence} ({self._paths.socket}); {what_it_says(self._paths)}") from None
        close_all(fds)
        return message

    def _welcomed(self, message: Welcome) -> None:
        self._supervised, self._managed, self._config = message.supervised, message.managed, message.config
        self._lost_s = None
        self._handshake.may_have(message.workers)
        if self._has_helped:
            self._handshake.ask_for_fingerprint()
        if message.program_wanted:
            self._handshake.hand_over(self._connection)

    @property
    def is_lost(self) -> bool:
        """True when the daemon is gone and no other one is reached yet."""
        return self._reconnection is not None

    def send(self, message: Message) -> None:
        """Sends to the daemon; does nothing while the link is lost."""
        self._connection.send(message)

    def receive(self) -> tuple[Message, list[int]] | None:
        """Returns the next message that is there already, with its descriptors, or None. Raises ProtocolError, and what
        handing the program over raises."""
        found = self._connection.receive()
        if found is not None:
            message = found[0]
            if isinstance(message, Welcome):
                # Not when it is reached: one that is dying may still take a connection.
                self.returns += self._is_new
                self._is_new = False
                meet_daemon(message.software, is_first=False)
                self._welcomed(message)
            elif isinstance(message, ForkWanted):
                self._handshake.hand_over_fork(self._connection)
            elif isinstance(message, Deciding):
                self._handshake.ask_for_fingerprint()
            elif isinstance(message, Farewell):
                self._farewell = message.reason
        elif self._reconnection is None and not self._connection.is_open:
            self._connection.close()
            if self._lost_s is None:
                self._lost_s = time.monotonic()
            self._reconnection = Reconnection(
                self._paths,
                supervised=self._supervised,
                managed=self._managed,
                config=self._config,
                lost_s=self._lost_s,
            )
        return found

    def hand_over_fork(self) -> None:
        """Hands the fork over, after the Hello to another daemon."""
        if self._handshake.forks:
            self._handshake.hand_over_fork(self._connection)

    def wait(self, timeout_s: float) -> None:
        """Waits until there is something to receive, or come_back() can do anything, or `timeout_s` is over."""
        if self._reconnection is not None:
            time.sleep(min(self._reconnection.pause_s, max(0.0, timeout_s)))
        else:
            self._connection.wait(timeout_s)

    def come_back(self) -> bool:
        """Returns True when another daemon was reached just now: it is to be told a Hello, and knows nothing else. Does
        not block."""
        if self._reconnection is None:
            return False
        sock = self._reconnection.step()
        if sock is None:
            return False
        self._reconnection = None
        self._farewell = ""
        self._connection = Connection(sock)
        self._is_new = True
        return True

    def check(self) -> None:
        """Raises DaemonUnavailableError, once, when no daemon can be reached; then it is tried anew."""
        if self._reconnection is not None and self._reconnection.error is not None:
            error, self._reconnection = self._reconnection.error, None
            gone = f"the daemon is gone{': ' + self._farewell if self._farewell else ''}"
            raise DaemonUnavailableError(f"{gone}, and {error}")

    def why_silent(self) -> str:
        """Says what is to be said when the daemon does not say why something takes so long."""
        if self._reconnection is not None:
            return f"there is no daemon at {self._paths.socket}; it is tried again and again"
        return f"the daemon does not say why; is it stopped? `prefetchd status` tells, and {what_it_says(self._paths)}"

    def lose(self) -> None:
        """Drops the connection: what is still to be received is of no use, and the next receive() finds the link
        lost."""
        self._connection.close()

    def stay(self) -> None:
        """Ends coming back, and the session's part in its fork. Idempotent."""
        if self._reconnection is not None:
            self._reconnection.close()
        self._handshake.close()

    def abandon(self) -> None:
        """Closes what a forked child inherited."""
        self._connection.close()
        self._handshake.close()
        if self._reconnection is not None:
            self._reconnection.abandon()

    def close(self) -> None:
        """Closes the connection, and ends the session's part in its fork. Idempotent."""
        self._connection.close()
        self._handshake.close()
