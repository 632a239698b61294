"""Planners are processes that run the samplers of streams whose order nobody else knows: started, asked, and started
again. Pure. Decision 0021 has the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prefetchd.daemon.engine.commands import Assign, Command, Log, StartWorker, StopWorker
from prefetchd.daemon.engine.stream.stages import Planner, Stage
from prefetchd.daemon.engine.stream.stream_state import FailStream, StreamState
from prefetchd.processes.process_exit import CLEAN, ProcessExit, is_hopeless
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import PLANNER, Message, Planned


class Planners:
    """Runs one planner a stream. Its number is of the workers' numbers; the limit on busy workers is not for it."""

    def __init__(
        self,
        streams: Mapping[int, StreamState],
        commands: list[Command],
        new_number: Callable[[], int],
        fail_stream: FailStream,
    ) -> None:
        self._streams = streams
        self._commands = commands
        self._new_number = new_number
        self._fail_stream = fail_stream

    def dispatch(self, now_s: float) -> None:
        """Asks what planners are to be asked; starts those that are not there."""
        for stream in self._streams.values():
            plans, planner = stream.plans, stream.planner
            host = stream.host
            if plans is None or stream.stage is not Stage.RUNNING or stream.paused or not plans.has_question:
                continue
            if host is None or (planner is None and stream.failed_starts.is_pausing):
                continue
            if planner is None:
                stream.planner = Planner(self._new_number(), now_s)
                self._commands.append(StartWorker(stream.number, host.number, stream.planner.number, PLANNER, 1))
            elif planner.ready:
                planner.since_s = now_s
                for message in plans.questions():
                    self._commands.append(Assign(planner.number, message))

    def stream_of(self, number: int) -> StreamState | None:
        """Returns the stream whose planner the process `number` is."""
        for stream in self._streams.values():
            if stream.planner is not None and stream.planner.number == number:
                return stream
        return None

    def ready(self, stream: StreamState) -> None:
        assert stream.planner is not None
        stream.planner.ready = True
        stream.failed_starts.clear()

    def says(self, stream: StreamState, message: Message) -> None:
        """Takes what the stream's planner says. Raises ProtocolError."""
        if stream.plans is None:
            raise ProtocolError(f"a worker does not send {type(message).__name__}")
        stream.plans.planner_says(message)
        if isinstance(message, Planned):
            stream.planner_deaths = 0

    def not_started(self, stream: StreamState) -> None:
        """Notes that no process can be had for the planner."""
        assert stream.plans is not None
        stream.planner = None
        stream.plans.planner_is_new()

    def died(self, stream: StreamState, how: ProcessExit) -> None:
        """Notes that the planner is gone; by its own will when it was asked for what lies behind it."""
        assert stream.plans is not None
        stream.planner = None
        stream.plans.planner_is_new()
        # A death that follows from the zygote's counts as the zygote's.
        stream.planner_deaths += not how.follows_from_zygote
        level, deaths = "info" if how == CLEAN else "warning", stream.planner_deaths
        self._commands.append(Log.line(level, "planner ended", stream=stream.name, how=str(how), deaths=deaths))
        if is_hopeless(stream.planner_deaths, how):
            text = f"the planner of stream {stream.name!r}, which runs its sampler, dies again and again: {how}"
            self._fail_stream(stream, "stream_failed", text)

    def forget(self, stream: StreamState, *, stop: bool = False) -> None:
        """Forgets the planner: its stream is dropped or parked, and the zygote takes it with it; or the stream has
        failed, and it is to `stop`."""
        if stream.planner is not None:
            if stop:
                self._commands.append(StopWorker(stream.planner.number, kill=True))
            stream.planner = None
            if stream.plans is not None:
                stream.plans.planner_is_new()
