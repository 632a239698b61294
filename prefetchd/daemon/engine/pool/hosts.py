"""The hosts of streams: the zygotes that workers are forked from. Pure.

Rules
 1. A stream has at most one host that serves (its workers are started from it) and one that is coming. When the coming
    one is ready it serves; the former one's workers end after their tasks, and then it ends.
 2. A trainer's fork serves first: nothing had to be loaded for it. It is taken when the stream has no host, or when
    the one that it has was forked from a trainer that is gone.
 3. An executed host loads the program. It is started when the stream has no other host and something is to be filled,
    or when the trainer that the serving host was forked from is gone: that one still has that trainer's memory. Not
    when that has ended in order, and nobody else consumes the stream: perhaps nobody ever will.
 4. A fork whose trainer is gone ends as soon as nothing is to be filled, also without another host; but not before it
    has said what its program is, and written it if it is small.
 5. When a host dies, what goes on is, in this order: its spare, an executed host, another fork of a living trainer, the
    program of one that does not fork. A stream for which there is none of these fails if somebody consumes it; else it
    waits for a trainer (PARKED).
 6. The program is asked for once the fork's fingerprint is known. A large one is written only when rule 3 needs it:
    it would lie in memory twice. When there is no comfortable room for that, another trainer of the stream is asked for
    a fork; without one the host of the dead trainer ends, and what is ready stays.
 7. Where the stream's fingerprint is known, a fork serves only once its own is known to be the same: until then
    nothing is made by it. One of another program is refused, and its trainer, whose dataset has changed, is not asked
    for forks of this stream again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from prefetchd.daemon.engine.commands import (
    AskProgram,
    BindHost,
    Command,
    DropHost,
    Identify,
    Log,
    Send,
    StartSpare,
    StartStream,
)
from prefetchd.daemon.engine.pool.planners import Planners
from prefetchd.daemon.engine.pool.pool import Pool
from prefetchd.daemon.engine.stream.consumers import Consumer
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.stream_state import FailStream, Host, StreamState
from prefetchd.processes.process_exit import ProcessExit, is_hopeless
from prefetchd.wire.messages import ForkWanted

SMALL_PROGRAM_BYTES = 64 << 20
"""A program whose arrays take no more is written at once, so that it outlives the trainer and its fork."""

EXECUTED_AFTER = 4
"""Times in a row that no worker could be forked from a trainer's fork."""

TRAINER_GONE_S = 1.0
"""A trainer that was gone for less may be about to be started again, with a fork of its own."""

_CHANGED = (
    "the dataset of stream {!r} has been changed since its batches were begun, and the processes that had it as it was "
    "then are dead: its other batches would be of another dataset. Make the loader again"
)
_UNTOLD = (
    "nobody can tell whether the dataset of stream {!r} is still the same, and the processes that had it as it was "
    "when its batches were begun are dead. Make the loader again"
)
_GONE = "what makes the batches of stream {!r} is gone with the trainer that it was forked from: {}"


class Hosts:
    """Keeps the hosts of all streams, which are the engine's. Numbers of hosts are never used again."""

    def __init__(
        self,
        streams: Mapping[int, StreamState],
        pool: Pool,
        planners: Planners,
        commands: list[Command],
        fail_stream: FailStream,
    ) -> None:
        self._streams = streams
        self._pool = pool
        self._planners = planners
        self._commands = commands
        self._fail_stream = fail_stream
        self._next = 1
        self._hosts: dict[int, Host] = {}

    def get(self, number: int) -> Host | None:
        """Returns the host of this number while it lives and is wanted."""
        return self._hosts.get(number)

    def _new(self, **fields: Any) -> Host:
        host = self._hosts[self._next] = Host(self._next, **fields)
        self._next += 1
        return host

    # --- coming ---

    def new_fork(self, session: int) -> Host:
        """Returns a host for the fork that the trainer of `session` hands over; give() it to a stream, or drop() it."""
        return self._new(session=session)

    def give(self, stream: StreamState, host: Host) -> None:
        """Gives the fork to this stream, if that takes it (rules 2 and 7)."""
        stream.requests.fork_from = 0
        if self._is_other(stream, host) or (host.mute and stream.spec.is_identified):
            self._refuse(stream, host)
            return
        if stream.failure is not None or not self._takes(stream, host):
            self.drop(host)
            return
        stream.requests.end(host.session)
        if stream.coming is not None:
            self.drop(stream.coming)
        host.stream = stream
        stream.coming = host
        self._commands.append(BindHost(host.number, stream.number))
        if stream.host is None:
            stream.stage = Stage.LOADING
        if host.fingerprint:
            self._identify(host)
        self._serve_if_it_may(host)

    def start(self, stream: StreamState) -> None:
        """Has an executed host load the stream's program, which is there."""
        host = stream.coming = self._new(stream=stream)
        if stream.host is None:
            stream.stage = Stage.LOADING
        self._commands.append(StartStream(stream.number, host.number))

    def resume(self, stream: StreamState) -> None:
        """Gets a host for a parked stream that has something to fill (rules 3 and 5)."""
        if stream.has_program:
            self.start(stream)
        elif not stream.requests.fork_from:
            self._ask_for_fork(stream)

    def ready(self, number: int) -> None:
        """Notes that the host has its program."""
        host = self._hosts.get(number)
        if host is None:
            return
        host.ready = True
        self._serve_if_it_may(host)

    def _takes(self, stream: StreamState, host: Host) -> bool:
        if stream.host is None:
            return True
        return stream.host.is_fork and not self._has_owner(stream, stream.host)

    @staticmethod
    def _is_other(stream: StreamState, host: Host) -> bool:
        """True when the fork is known to be of another program than the stream."""
        return bool(host.fingerprint) and stream.spec.is_identified and host.fingerprint != stream.spec.fingerprint

    def _serve_if_it_may(self, host: Host) -> None:
        """Lets the coming host serve in the place of the former one, if it is ready and known to be of the stream's
        program (rules 1 and 7)."""
        stream = host.stream
        if stream is None or stream.coming is not host or not host.ready:
            return
        if host.is_fork and not host.fingerprint and stream.spec.is_identified:
            return
        former, stream.host, stream.coming = stream.host, host, None
        if stream.failure is None:
            stream.stage = Stage.RUNNING
        if former is None:
            return
        self._commands.append(Log.line("info", "another zygote serves", stream=stream.name, forked=host.is_fork))
        stream.failed_starts.clear()
        self._pool.stop_workers(stream, former)
        self._planners.forget(stream, stop=True)
        self.worker_gone(stream, former)

    # --- what forks tell ---

    def identified(self, number: int, fingerprint: str) -> None:
        """Notes the fingerprint of the fork's program; empty: nobody will ever know it."""
        host = self._hosts.get(number)
        if host is None:
            return
        host.fingerprint, host.mute = fingerprint, not fingerprint
        if host.stream is not None:
            self._identify(host)
            self._serve_if_it_may(host)

    def _identify(self, host: Host) -> None:
        stream = host.stream
        assert stream is not None
        if host.mute:
            if stream.spec.is_identified:
                self._refuse(stream, host)
            return
        if not stream.spec.is_identified:
            stream.spec = dataclasses.replace(stream.spec, fingerprint=host.fingerprint)
            self._commands.append(Identify(stream.number))
        elif self._is_other(stream, host):
            self._refuse(stream, host)
            return
        if not stream.has_program and not stream.unpicklable and not host.asked:
            host.asked = True
            self._commands.append(AskProgram(host.number, SMALL_PROGRAM_BYTES))

    def _refuse(self, stream: StreamState, host: Host) -> None:
        """Refuses a fork of another program (rule 7)."""
        self._commands.append(
            Log.line("warning", "fork of another program", stream=stream.name, fingerprint=host.fingerprint)
        )
        why = (_UNTOLD if host.mute else _CHANGED).format(stream.name)
        consumer = stream.consumers.get(host.session)
        if consumer is not None:
            consumer.refused = why
        if stream.host is host:
            # The stream's fingerprint has become known otherwise meanwhile. What the fork has made may have been handed
            # out.
            self._fail_stream(stream, "stream_failed", why)
        elif host.stream is None or stream.coming is host:
            if stream.coming is host:
                stream.coming = None
            self.drop(host)
            if stream.failure is None:
                self._go_on(stream)
        # Else the host serves no longer, and ends with its workers.

    def program_kept(self, stream: StreamState) -> None:
        """Notes that the stream's program is in the daemon's hands."""
        stream.has_program = True
        stream.unpicklable = ""
        for host in (stream.host, stream.coming):
            if host is not None:
                host.asked = False

    def program_refused(self, number: int, reason: str) -> StreamState | None:
        """Notes that the fork cannot write its program, for this `reason`; empty: it is too large to be written for
        nothing, or now. Returns the stream if its trainer is gone, and nobody has the program but this fork, which is
        not to have that trainer's memory any longer (rule 6)."""
        host = self._hosts.get(number)
        if host is None or host.stream is None:
            return None
        host.asked = False
        if not reason and host.asked_whole:
            return self._give_up(host, host.stream)
        if reason and not host.stream.unpicklable:
            self._commands.append(Log.line("info", "carried by fork", stream=host.stream.name, why=reason))
        host.stream.unpicklable = reason
        return None

    def _give_up(self, host: Host, stream: StreamState) -> StreamState | None:
        host.holds_too_much = True
        self._commands.append(Log.line("warning", "no room for a dead trainer's program", stream=stream.name))
        heir = self._may_fork(stream)
        if heir is not None and not stream.requests.fork_from:
            stream.requests.fork_from = heir.session
            self._commands.append(Send(heir.session, ForkWanted()))
        return None if stream.in_use else stream

    @staticmethod
    def _may_fork(stream: StreamState) -> Consumer | None:
        """Returns a consumer that can be asked for a fork, or None. One that does not fork hands its program over
        instead."""
        living = [each for each in stream.consumers.values() if not each.departed and not each.refused]
        forking = (each for each in living if each.forks)
        return next(forking, next((each for each in living if each.has_program), None))

    def spare_ready(self, number: int) -> None:
        """Notes that the host has a spare: another process like it."""
        host = self._hosts.get(number)
        if host is not None:
            host.has_spare = True

    # --- going ---

    def died(self, number: int, how: ProcessExit) -> None:
        """Notes that the host is gone, and its workers with it or soon, and goes on with another (rule 5)."""
        host = self._hosts.pop(number, None)
        if host is None:
            return
        stream = host.stream
        if stream is None or stream.failure is not None or host not in (stream.host, stream.coming):
            self._commands.append(DropHost(number))
            return
        stream.host_deaths += 1
        stream.counters.zygote_deaths += 1
        self._commands.append(
            Log.line("warning", "zygote died", stream=stream.name, how=str(how), deaths=stream.host_deaths)
        )
        if stream.host is host:
            stream.host = None
        else:
            stream.coming = None
        if is_hopeless(stream.host_deaths, how):
            self._commands.append(DropHost(number))
            self._fail_stream(
                stream, "stream_failed", f"the zygote of stream {stream.name!r} dies again and again: {how}"
            )
        # The spare first: it has the program already.
        elif host.has_spare and stream.coming is None:
            spare = stream.coming = self._new(session=host.session, stream=stream, fingerprint=host.fingerprint)
            stream.stage = Stage.LOADING
            self._commands.append(StartSpare(stream.number, spare.number, number))
        else:
            self._commands.append(DropHost(number))
            self._go_on(stream)

    def not_started(self, number: int, now_s: float, reason: str) -> bool:
        """Notes that no process can be had for the host. True the first time in a row."""
        host = self._hosts.pop(number, None)
        if host is None or host.stream is None or host.stream.coming is not host:
            return False
        stream = host.stream
        stream.coming = None
        self._commands.append(Log.line("warning", "no zygote can be started", stream=stream.name, why=reason))
        is_first = stream.failed_starts.add(now_s, reason)
        if stream.host is None and stream.failure is None:
            # A parked stream gets a host when there is something to fill.
            stream.stage = Stage.PARKED
        return is_first

    def cannot_fork(self, stream: StreamState) -> None:
        """Notes that no worker can be forked from the stream's host. After EXECUTED_AFTER such failures in a row an
        executed host loads the program: a trainer's fork may have more memory than is left for another like it."""
        is_forked = stream.host is not None and stream.host.is_fork and stream.coming is None
        if is_forked and stream.has_program and stream.failed_starts.count == EXECUTED_AFTER:
            self._commands.append(
                Log.line("warning", "executed in place of a fork", stream=stream.name, why=stream.failed_starts.why)
            )
            self.start(stream)

    def _go_on(self, stream: StreamState) -> None:
        """Gets another host for a stream that has lost one, unless it has one."""
        if stream.host is not None or stream.coming is not None:
            return
        if stream.has_program:
            self.start(stream)
            return
        stream.stage = Stage.PARKED
        self._ask_for_fork(stream)

    def _ask_for_fork(self, stream: StreamState) -> None:
        """Asks a living trainer to fork once more, which it does when it comes to next(). Without any the stream waits,
        or fails (rule 5)."""
        living = [each for each in stream.consumers.values() if not each.departed]
        asked = self._may_fork(stream)
        if asked is not None:
            stream.requests.fork_from = asked.session
            self._commands.append(Send(asked.session, ForkWanted()))
        elif living and not stream.is_awaited:
            gone = _GONE.format(stream.name, stream.unpicklable or "it was never handed over")
            refused = next((each.refused for each in living if each.refused), gone)
            self._fail_stream(stream, "stream_failed", refused)

    def worker_gone(self, stream: StreamState, host: Host | None) -> None:
        """Ends a host that does not serve when its last worker has ended, or was told to."""
        if host is None or host in (stream.host, stream.coming) or host.number not in self._hosts:
            return
        if not any(worker.host is host for worker in stream.workers.values()):
            self.drop(host)

    def drop(self, host: Host) -> None:
        """Ends a host that nobody needs."""
        if self._hosts.pop(host.number, None) is not None:
            self._commands.append(DropHost(host.number))

    def forget(self, stream: StreamState) -> None:
        """Forgets the hosts of a stream that is parked or dropped: they end with it."""
        for number in [number for number, host in self._hosts.items() if host.stream is stream]:
            del self._hosts[number]
        stream.host = stream.coming = None

    # --- time ---

    def tick(self, now_s: float) -> None:
        """Follows rules 3 and 4, for streams whose trainer is gone. Streams with nothing to fill are the registry's."""
        for stream in self._streams.values():
            host = stream.host
            if host is None or not host.is_fork or self._has_owner(stream, host):
                stream.owner_gone_s = None
                continue
            if stream.owner_gone_s is None:
                stream.owner_gone_s = now_s
            if stream.failed_starts.is_pausing:
                continue
            if stream.coming is not None or now_s < stream.owner_gone_s + TRAINER_GONE_S or stream.paused:
                continue
            if not stream.in_use and (stream.left_cleanly or not stream.claims.has_work()):
                continue
            if stream.has_program:
                self.start(stream)
            elif not stream.unpicklable and not host.asked and host.fingerprint and not host.holds_too_much:
                host.asked = host.asked_whole = True
                self._commands.append(AskProgram(host.number, 0))

    @staticmethod
    def _has_owner(stream: StreamState, host: Host) -> bool:
        """True while the trainer that the host was forked from may need the host. A trainer without a connection may
        come back."""
        consumer = stream.consumers.get(host.session)
        return (consumer is not None and not consumer.departed) or stream.is_awaited

    @staticmethod
    def is_telling(stream: StreamState) -> bool:
        """True while the stream's fork is about to say what its program is, or to write it: without that nobody can use
        what is ready when its trainer comes again."""
        host = stream.host
        return host is not None and host.is_fork and not host.mute and (not host.fingerprint or host.asked)

    def is_orphan(self, stream: StreamState) -> bool:
        """True when the stream is served by a fork whose trainer is gone."""
        return stream.host is not None and stream.host.is_fork and not self._has_owner(stream, stream.host)
