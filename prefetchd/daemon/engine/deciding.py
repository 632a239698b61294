"""Keeps trainers whose stream is not known yet: there are batches that may be theirs, and what makes theirs has yet to
tell its fingerprint. Pure. Decision 0092 has the reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from prefetchd.daemon.engine.commands import Command, Send
from prefetchd.daemon.engine.pool.hosts import Hosts
from prefetchd.daemon.engine.registry import Registry
from prefetchd.daemon.engine.stream.stream_state import Host
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Deciding, ForkWanted, Hello, Identified, Message, PlaceCursor, WaitNamed

MOST_MESSAGES = 1000
DECIDING_AGAIN_S = 2.0
"""The interval at which a waiting trainer is told that it waits. One that shares a stream by its name waits for as long
as a fingerprint takes; but not for a silent daemon."""

NAMED_AFTER_S = 60.0
NAMED_AGAIN_S = 30.0


@dataclasses.dataclass
class Undecided:
    """One session between its Hello, at `since_s`, and its stream, which it gets at `until_s` in any case. `messages`
    have come meanwhile, in order. It was told at `told_s` that it waits, and `named` times why."""

    session: int
    hello: Hello
    since_s: float
    until_s: float
    told_s: float
    named: int = 0
    host: Host | None = None
    messages: list[Message] = dataclasses.field(default_factory=list)


class UndecidedTrainers:
    """Keeps all trainers that wait for their stream. `decided` is called with one when it can have a stream; it is not
    kept here any more by then."""

    def __init__(
        self,
        registry: Registry,
        hosts: Hosts,
        commands: list[Command],
        decided: Callable[[Undecided, float], None],
    ) -> None:
        self._registry = registry
        self._hosts = hosts
        self._commands = commands
        self._decided = decided
        self._all: dict[int, Undecided] = {}

    def hello(self, session: int, hello: Hello, now_s: float) -> bool:
        """Keeps the trainer, and tells it that it waits; False when its stream can be decided at once."""
        if not (hello.forks or hello.shared) or not hello.spec or not self._registry.must_wait(hello):
            return False
        begun = any(not waiting for _, _, _, waiting in hello.cursors)
        until_s = now_s + self._registry.patience_s(hello, begun=begun)
        self._all[session] = Undecided(session, hello, now_s, until_s, now_s)
        self._commands.append(Send(session, Deciding(takes_fingerprint=True)))
        return True

    def until_s(self, session: int) -> float | None:
        """Returns when the session's trainer gets a stream in any case; None when it has one, or shares one by its
        name."""
        found = self._all.get(session)
        return found.until_s if found is not None and not found.hello.shared else None

    def message(self, session: int, message: Message, now_s: float) -> bool:
        """Keeps what an undecided trainer says; False for others. Raises ProtocolError for more messages than any
        trainer sends before it has a stream."""
        found = self._all.get(session)
        if found is None:
            # An Identified may come after all: its trainer has got a stream in the meantime.
            return isinstance(message, Identified)
        if isinstance(message, Identified):
            known = dataclasses.replace(found.hello, fingerprint=message.fingerprint)
            # When there are batches of this fingerprint, the trainer's word is enough. Else only the fork's own counts:
            # a fingerprint may be another in each process.
            if message.fingerprint and self._registry.has_left(known):
                found.hello = known
                self._decide(found, now_s)
            else:
                self._commands.append(Send(session, Deciding(takes_fingerprint=True)))
            return True
        if len(found.messages) >= MOST_MESSAGES:
            raise ProtocolError(f"{MOST_MESSAGES} messages before the stream is known")
        found.messages.append(message)
        if isinstance(message, PlaceCursor) and not message.waiting:
            found.until_s = min(found.until_s, now_s + self._registry.patience_s(found.hello, begun=True))
        return True

    def fork_came(self, session: int, host: Host) -> bool:
        """Keeps the fork of an undecided trainer; False for others."""
        found = self._all.get(session)
        if found is None:
            return False
        found.host = host
        return True

    def host_died(self, host: Host) -> None:
        """Asks the trainer that had forked this host for another fork."""
        for found in self._all.values():
            if found.host is host:
                found.host = None
                if not found.hello.fingerprint:
                    self._commands.append(Send(found.session, ForkWanted()))

    def forget(self, session: int) -> None:
        """Forgets a session whose connection has ended, and drops its fork."""
        found = self._all.pop(session, None)
        if found is not None and found.host is not None:
            self._hosts.drop(found.host)

    def decide(self, now_s: float) -> None:
        """Gives streams to all who need not wait any more: a fingerprint has become known, or never will be."""
        if not self._all:
            return
        self._registry.drop_unidentifiable()
        for found in list(self._all.values()):
            if found.host is not None and found.host.fingerprint:
                found.hello = dataclasses.replace(found.hello, fingerprint=found.host.fingerprint)
            if not self._registry.must_wait(found.hello) or (found.host is not None and found.host.mute):
                self._decide(found, now_s)

    def tick(self, now_s: float) -> bool:
        """Gives a stream of its own to each trainer that has waited for long enough, and tells those that share a
        stream by its name that they wait on. True when somebody has got one."""
        for found in self._all.values():
            if found.hello.shared:
                self._tell(found, now_s)
        overdue = [found for found in self._all.values() if not found.hello.shared and found.until_s <= now_s]
        for found in overdue:
            self._decide(found, now_s)
        return bool(overdue)

    def _tell(self, found: Undecided, now_s: float) -> None:
        if now_s >= found.told_s + DECIDING_AGAIN_S:
            found.told_s = now_s
            self._commands.append(Send(found.session, Deciding(takes_fingerprint=True)))
        waited_s = now_s - found.since_s
        if waited_s >= NAMED_AFTER_S + found.named * NAMED_AGAIN_S:
            found.named += 1
            text = (
                f"stream {found.hello.stream!r} has batches, and whether they are of this loader's dataset is known "
                f"when its fingerprint has been taken; that has taken {waited_s:.0f} s by now. A loader without "
                "stream= does not wait for it"
            )
            self._commands.append(Send(found.session, WaitNamed(0, 0, 0, text)))

    def _decide(self, found: Undecided, now_s: float) -> None:
        del self._all[found.session]
        self._decided(found, now_s)
