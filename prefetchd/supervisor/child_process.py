"""Holds one child process for the daemon: a socket to talk, a pidfd that reports its death, a pipe for its output."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable, Sequence

from prefetchd.processes.process_exit import FORSAKEN, UNEXPLAINED, ExitKind, ProcessExit
from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.child_output import ChildOutput, OnOutput, silent
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import (
    Descriptors,
    DescriptorsLostError,
    NoDescriptorError,
    close_all,
    disclose,
    enclose,
    encode,
    receive_with_fds,
    send_packet,
)
from prefetchd.wire.messages import Message, NotSpawned, Spare, Spawned
from prefetchd.wire.os_errors import why

OnMessage = Callable[[Message, Descriptors], None]
"""Called with a message and its descriptors, of which it takes those that it keeps."""
OnEnd = Callable[[ProcessExit], None]

REASON_DEADLINE_S = 0.2
MESSAGES_A_TURN = 64
MOST_UNREAD_BYTES = 16 << 20
"""How much waits for a child that reads nothing. Its socket holds a few dozen long messages, and a bridge that copies a
batch reads none meanwhile."""
POST_AGAIN_S = 0.005
LAST_MESSAGES = 1024
"""How many messages are read at a child's death: its socket holds no more, unless a process that it has left still
sends."""


class ChildProcess:
    """A child process, watched until close(). It is killed when it says what it must not: when a packet is no message,
    or `on_message` raises ProtocolError; also when descriptors are lost that came with it, unless they were another
    child's, which then counts as not started."""

    def __init__(
        self,
        watcher: Watcher,
        sock: socket.socket,
        pid: int,
        pidfd: int,
        output: int,
        on_message: OnMessage,
        on_end: OnEnd,
        on_output: OnOutput,
    ) -> None:
        self.sock = sock
        self.pid = pid
        self.pidfd = pidfd
        self.how: ProcessExit | None = None
        self._watcher = watcher
        self._on_message = on_message
        self._on_end = on_end
        self._open = True
        self._reading = True
        self._awaits_reason = False
        self._outbox: deque[tuple[bytes, list[int]]] = deque()
        self._unread_bytes = 0
        self._ends_input = False
        sock.setblocking(False)
        watcher.watch(sock.fileno(), self._readable)
        watcher.watch(pidfd, self._ended)
        self._output = ChildOutput(watcher, output, on_output)

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Sends a message, or keeps it until the child has read others. One that leaves too many of them unread, or
        cannot be sent to, is hopeless or dead: its pidfd will report that."""
        try:
            enclosed, beside = (message, []) if fds else enclose(message)
        except OSError as error:
            # There is no descriptor left, or no memory, for so long a message.
            self._refuse(ProtocolError(f"what it is to be told cannot be sent: {why(error)}"))
            return
        try:
            self._post(encode(enclosed), fds or beside)
        finally:
            close_all(beside)

    def end_input(self) -> None:
        """Lets the child see end of file, behind all that it was sent: it ends when it has done its tasks."""
        self._ends_input = True
        if not self._outbox:
            self._shut()

    def _post(self, packet: bytes, fds: Sequence[int]) -> None:
        if not self._outbox and self._put(packet, fds):
            return
        self._unread_bytes += len(packet)
        if self._unread_bytes > MOST_UNREAD_BYTES:
            self.kill()
            return
        try:
            self._outbox.append((packet, [os.dup(fd) for fd in fds]))
        except OSError as error:
            self._refuse(ProtocolError(f"what it is to be told cannot be kept: {why(error)}"))
            return
        if len(self._outbox) == 1:
            self._watcher.call_later(POST_AGAIN_S, self._post_again)

    def _put(self, packet: bytes, fds: Sequence[int]) -> bool:
        """Sends a packet. False when the socket is full; one to a dead child is gone."""
        try:
            send_packet(self.sock, packet, fds)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def _post_again(self) -> None:
        while self._open and self._outbox and self._put(*self._outbox[0]):
            packet, fds = self._outbox.popleft()
            self._unread_bytes -= len(packet)
            close_all(fds)
        if self._open and self._outbox:
            self._watcher.call_later(POST_AGAIN_S, self._post_again)
        elif self._open and self._ends_input:
            self._shut()

    def _shut(self) -> None:
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def is_dead(self, wait_s: float) -> bool:
        """Waits up to `wait_s` for the death. Returns True when the child is dead."""
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(max(0.0, wait_s) * 1000))

    def tell(
        self,
        on_message: OnMessage,
        on_end: OnEnd,
        on_output: OnOutput,
    ) -> None:
        """Makes others receive what the child says from now on."""
        self._on_message, self._on_end, self._output.on_output = on_message, on_end, on_output

    def ended_as(self, how: ProcessExit) -> None:
        """Records how the child ended, after its zygote has reaped it. If it was killed for what it said, that reason
        stays."""
        if self.refusal is None:
            self.how = how
        if self._awaits_reason:
            self._reason_is_due()

    @property
    def refusal(self) -> ProcessExit | None:
        """The child's end if it was killed for what it said; else None."""
        return self.how if self.how is not None and self.how.kind is ExitKind.REFUSED else None

    def forsake(self, then: Callable[[], None]) -> None:
        """Ignores what the child says from now on; once it is dead it is closed, and `then` called."""
        self._on_message = lambda *_: None
        self._output.on_output = silent
        self.how = FORSAKEN

        def bury(_: ProcessExit) -> None:
            self.close()
            then()

        self._on_end = bury

    def close(self) -> None:
        """Forgets the child. Idempotent."""
        if not self._open:
            return
        self._open = False
        for fd in (self.sock.fileno(), self.pidfd):
            with contextlib.suppress(KeyError):
                self._watcher.unwatch(fd)
        self.sock.close()
        while self._outbox:
            close_all(self._outbox.popleft()[1])
        os.close(self.pidfd)
        self._output.close()

    def _readable(self) -> None:
        self._hear(MESSAGES_A_TURN)

    def _hear(self, messages: int) -> None:
        for _ in range(messages):
            if not (self._open and self._reading):
                return
            try:
                message, fds = receive_with_fds(self.sock)
                if message is not None:
                    message, fds = disclose(message, fds)
            except BlockingIOError:
                return
            except ConnectionResetError:
                # It died with messages unread. That is told once, before what it said last.
                continue
            except DescriptorsLostError as lost:
                self._hear_of_lost(lost.message, lost)
                continue
            except ProtocolError as error:
                self._refuse(error)
                return
            except OSError:
                message, fds = None, []
            if message is None:
                self._stop_reading()
                return
            try:
                with Descriptors(fds) as received:
                    self._on_message(message, received)
            except NoDescriptorError as lost:
                self._hear_of_lost(message, lost)
            except ProtocolError as error:
                self._refuse(error)

    def _hear_of_lost(self, message: Message, lost: ProtocolError) -> None:
        """Takes a message about another child without the descriptors that came with it, for which this process had no
        room: it is no fault of who sent it. That other child ends, as nobody has its socket any more."""
        if isinstance(message, Spawned):
            self._on_message(NotSpawned(message.child, str(lost)), Descriptors())
        elif not isinstance(message, Spare):
            self._refuse(lost)

    def _refuse(self, error: ProtocolError) -> None:
        """Kills the child, which is not to be believed any more: whoever started it starts another."""
        if self._open:
            self._stop_reading()
            if self.how != FORSAKEN:
                self.how = ProcessExit.refused(error)
            self.kill()

    def _stop_reading(self) -> None:
        if self._open and self._reading:
            self._reading = False
            self._watcher.unwatch(self.sock.fileno())

    def _ended(self) -> None:
        # What it said and printed before it died comes first.
        self._hear(LAST_MESSAGES)
        self._output.last_words()
        if not self._open:
            return
        self._watcher.unwatch(self.pidfd)
        if self.how is not None:
            self._on_end(self.how)
        else:
            # Its zygote is about to tell how; if that is dead too, nobody will.
            self._awaits_reason = True
            self._watcher.call_later(REASON_DEADLINE_S, self._reason_is_due)

    def _reason_is_due(self) -> None:
        if self._open and self._awaits_reason:
            self._awaits_reason = False
            self._on_end(self.how or UNEXPLAINED)
