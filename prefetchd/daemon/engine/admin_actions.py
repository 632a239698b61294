"""Does what an operator asks of streams: pause, resume, drain, evict. Pure. Decision 0031 has the reasons.

A paused stream is given no task; what is under way ends, what is ready is served. A drained one is paused and, once no
task of it is under way, parked: its processes are gone until it is resumed, its ring stays. After a restart in order
the next daemon holds streams of these names; after a death it knows of neither.
"""

from __future__ import annotations

from collections.abc import Mapping

from prefetchd.daemon.engine.commands import Command, Log
from prefetchd.daemon.engine.pool.pool import Pool
from prefetchd.daemon.engine.registry import Registry
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.wire.errors import CallerError

EVICTED = "it was evicted (`prefetchd evict`); make the loader again"


class AdminActions:
    """Changes `streams`, which are the engine's. Every method raises CallerError when no stream has that name."""

    def __init__(
        self, streams: Mapping[int, StreamState], registry: Registry, pool: Pool, commands: list[Command]
    ) -> None:
        self._streams = streams
        self._registry = registry
        self._pool = pool
        self._commands = commands

    def pause(self, name: str) -> list[str]:
        """Pauses the stream, or all streams when `name` is empty. Returns their names."""
        return [self._hold(stream, "stream paused") for stream in self._named(name)]

    def resume(self, name: str) -> list[str]:
        """Takes pause() and drain() back. Returns the names of the streams that were held."""
        if name in self._registry.held:
            # It has not come since the restart.
            del self._registry.held[name]
            return [name]
        if not name:
            self._registry.held.clear()
        held = [stream for stream in self._named(name) if stream.paused]
        for stream in held:
            stream.paused = stream.draining = False
            self._commands.append(Log.line("info", "stream resumed", stream=stream.name))
        return [stream.name for stream in held]

    def drain(self, name: str) -> list[str]:
        """Pauses streams, and has their processes end when no task of theirs is under way any more. Returns their
        names."""
        streams = self._named(name)
        for stream in streams:
            stream.draining = True
            self._hold(stream, "stream drains")
        self.park_drained()
        return [stream.name for stream in streams]

    def evict(self, name: str, *, force: bool) -> list[str]:
        """Drops a stream: its ring, its program and its processes. One that is consumed is dropped only with `force`,
        and its consumers are told; else raises CallerError."""
        if not name:
            raise CallerError("evict takes the name of one stream; `prefetchd status` lists them")
        (stream,) = self._named(name)
        if stream.in_use and not force:
            pids = [each.pid for each in stream.consumers.values() if not each.departed]
            pids += [each.pid for each in stream.absents.values() if not each.departed]
            raise CallerError(
                f"stream {name!r} is in use by pid {', '.join(map(str, pids))}; stop that first, or use --force: "
                "its next() will raise"
            )
        self._commands.append(Log.line("info", "stream evicted", stream=stream.name))
        self._registry.drop(stream, EVICTED)
        return [name]

    def park_drained(self) -> None:
        """Ends the processes of drained streams of which no task is under way."""
        for stream in self._streams.values():
            if not stream.draining or stream.is_busy or stream.stage is not Stage.RUNNING:
                continue
            for number in stream.workers:
                # What a worker keeps until there is room goes with it.
                stream.filling.forget_keeper(number)
            self._registry.end_processes(stream)

    def _hold(self, stream: StreamState, event: str) -> str:
        if not stream.paused:
            stream.paused = True
            self._commands.append(Log.line("info", event, stream=stream.name))
        return stream.name

    def _named(self, name: str) -> list[StreamState]:
        found = [stream for stream in self._streams.values() if not name or stream.name == name]
        if name and not found:
            there = ", ".join(repr(stream.name) for stream in self._streams.values()) or "none"
            raise CallerError(f"no stream {name!r}; there are: {there}")
        return found
