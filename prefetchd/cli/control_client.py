"""Opens a control connection: one request, one answer."""

from __future__ import annotations

import os
import socket

import click

from prefetchd import __version__
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import receive, send
from prefetchd.wire.messages import PROTOCOL_VERSION, Hello, Message, Refused, Welcome
from prefetchd.wire.peer_credentials import peer_credentials
from prefetchd.wire.runtime_paths import RuntimePaths

ANSWER_TIMEOUT_S = 10.0


class NoDaemonError(click.ClickException):
    """Nobody listens on the socket."""


class ControlClient:
    """Talks to the daemon on `paths`; a context manager. Raises NoDaemonError, and ClickException when it does not
    answer."""

    def __init__(self, paths: RuntimePaths) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sock.settimeout(ANSWER_TIMEOUT_S)
        try:
            self._sock.connect(os.fspath(paths.socket))
        except (FileNotFoundError, ConnectionRefusedError):
            self._sock.close()
            raise NoDaemonError(f"no daemon on {paths.socket}") from None
        except OSError as error:
            self._sock.close()
            raise click.ClickException(f"{paths.socket} cannot be connected to: {error.strerror or error}") from None
        uid = peer_credentials(self._sock).uid
        if uid != os.geteuid():
            self._sock.close()
            raise click.ClickException(
                f"{paths.socket} is served by uid {uid}, not by you; choose another with --socket"
            )
        try:
            self.ask(Hello(PROTOCOL_VERSION, "control", __version__, os.getpid()), Welcome)
        except BaseException:
            self._sock.close()
            raise

    def __enter__(self) -> ControlClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def say(self, request: Message) -> None:
        """Sends a request that is answered by several messages; hear() them."""
        send(self._sock, request)

    def wait_up_to(self, timeout_s: float) -> None:
        """Sets how long hear() waits from now on."""
        self._sock.settimeout(timeout_s)

    def hear(self) -> Message:
        """Receives the next message. Raises ClickException when the daemon refuses, ends or does not answer."""
        try:
            found = receive(self._sock)
        except (OSError, ProtocolError) as error:
            raise click.ClickException(f"the daemon does not answer: {error}") from None
        if found is None:
            raise click.ClickException("the daemon has ended")
        if isinstance(found, Refused):
            raise click.ClickException(found.message)
        return found

    def ask(self, request: Message, answer: type[Message]) -> Message:
        """Sends a request and waits for an answer of that type. Raises ClickException when none comes."""
        try:
            send(self._sock, request)
            found = receive(self._sock)
        except TimeoutError:
            raise click.ClickException(
                f"the daemon does not answer within {ANSWER_TIMEOUT_S:.0f} s; `prefetchd status` shows its pid and its "
                "last sign of life"
            ) from None
        except (OSError, ProtocolError) as error:
            raise click.ClickException(f"the daemon cannot be asked: {error}") from None
        if isinstance(found, Refused):
            raise click.ClickException(found.message)
        if not isinstance(found, answer):
            raise click.ClickException(f"the daemon answered {type(found).__name__}")
        return found

    def wait_for_end(self) -> None:
        """Waits until the daemon closes the connection."""
        try:
            while receive(self._sock) is not None:
                pass
        except (OSError, ProtocolError):
            pass
