"""Runs environment zygotes by environment: each is shared by all hosts that it forks, and given up when it has had none
for long. Runs in the daemon."""

from __future__ import annotations

import contextlib
from typing import Protocol

from prefetchd.processes.environment import digest_at_start
from prefetchd.processes.process_exit import ProcessExit
from prefetchd.supervisor.backend import Watcher
from prefetchd.supervisor.burials import Burials
from prefetchd.supervisor.environment_zygote import EnvironmentZygote
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.framing import Descriptors
from prefetchd.wire.messages import Message
from prefetchd.wire.program_layout import Environment, decode_environment

KEEP_ENVIRONMENT_S = 600.0


class ZygoteEvents(Protocol):
    """Receives what environment zygotes report."""

    def zygote_says(self, digest: bytes, message: Message, fds: Descriptors) -> None:
        """The zygote of that environment has sent `message`; the receiver takes those of `fds` that it keeps. Raises
        ProtocolError for what it must not say."""

    def zygote_ended(self, host: int, how: ProcessExit) -> None:
        """The zygote that was to fork this host, or has, is dead."""

    def zygote_printed(self, host: int, lines: list[str], left_out: int) -> None:
        """The zygote has printed lines; one of its hosts is to have them."""


class EnvironmentZygotes:
    """The environment zygotes, by the digest of their environment."""

    def __init__(self, watcher: Watcher, burials: Burials, events: ZygoteEvents, *, nice: int) -> None:
        self._watcher = watcher
        self._burials = burials
        self._events = events
        self._nice = nice
        self._zygotes: dict[bytes, EnvironmentZygote] = {}

    def get(self, digest: bytes | None) -> EnvironmentZygote | None:
        """Returns the zygote of that environment while it lives; None for a host that no environment zygote forks."""
        return self._zygotes.get(digest) if digest is not None else None

    @property
    def pids(self) -> set[int]:
        return {zygote.pid for zygote in self._zygotes.values()}

    def prepare(self, environment: bytes) -> None:
        """Starts the zygote of an environment that a host is about to need. Fails silently."""
        with contextlib.suppress(ProtocolError, OSError):
            decoded = decode_environment(environment)
            digest = digest_at_start(decoded)
            if digest not in self._zygotes:
                self._start(digest, decoded)

    def of(self, digest: bytes, environment: Environment) -> EnvironmentZygote:
        """Returns the zygote of that environment, and starts it if there is none. Raises OSError."""
        return self._zygotes.get(digest) or self._start(digest, environment)

    def enter(self, host: int, digest: bytes) -> None:
        """Notes that the zygote is to fork this host."""
        zygote = self._zygotes[digest]
        zygote.hosts.add(host)
        zygote.unused_since_s = None

    def leave(self, host: int, digest: bytes | None) -> None:
        """Notes that the host is gone."""
        zygote = self.get(digest)
        if zygote is not None:
            zygote.hosts.discard(host)
            if not zygote.hosts:
                zygote.unused_since_s = self._watcher.now_s()

    def retire_idle(self, now_s: float) -> None:
        """Gives up what no host has used for KEEP_ENVIRONMENT_S."""
        for digest, zygote in list(self._zygotes.items()):
            if zygote.unused_since_s is not None and zygote.unused_since_s + KEEP_ENVIRONMENT_S <= now_s:
                del self._zygotes[digest]
                # Its memory may take long to be given back: nobody waits for that.
                self._burials.bury(zygote.child, zygote.reap)

    def bury_all(self) -> None:
        for zygote in self._zygotes.values():
            self._burials.bury(zygote.child, zygote.reap)
        self._zygotes.clear()

    def _start(self, digest: bytes, environment: Environment) -> EnvironmentZygote:
        zygote = self._zygotes[digest] = EnvironmentZygote(
            self._watcher,
            environment,
            lambda message, fds: self._events.zygote_says(digest, message, fds),
            lambda _: self._ended(digest),
            lambda lines, left_out: self._printed(digest, lines, left_out),
            nice=self._nice,
        )
        # Until enter(), which is not called where the host cannot be started after all.
        zygote.unused_since_s = self._watcher.now_s()
        return zygote

    def _ended(self, digest: bytes) -> None:
        zygote = self._zygotes.pop(digest, None)
        if zygote is None:
            return
        reaped = zygote.reap()
        how = zygote.child.refusal or reaped
        zygote.child.close()
        for host in list(zygote.hosts):
            self._events.zygote_ended(host, how)

    def _printed(self, digest: bytes, lines: list[str], left_out: int) -> None:
        zygote = self._zygotes.get(digest)
        for host in sorted(zygote.hosts)[:1] if zygote is not None else ():
            self._events.zygote_printed(host, lines, left_out)
