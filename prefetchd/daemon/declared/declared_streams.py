"""Keeps all streams that the configuration declares: begun at once, attached to by name, changed when it is read
again."""

from __future__ import annotations

import logging
import os
import os.path
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefetchd.daemon.config.config_file import read_config
from prefetchd.daemon.config.daemon_config import Config, StreamConfig, changed_settings
from prefetchd.daemon.declared.declared_stream import DeclaredStream
from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.file_backed_ring import FILES
from prefetchd.daemon.engine.stream.keeping import is_warm, wanted
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.segments.file_streams import FileStreams
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.sockets.sessions import Session
from prefetchd.wire.errors import CallerError, PrefetchdError, StreamFailedError
from prefetchd.wire.messages import Hello, Reloaded, WaitNamed
from prefetchd.wire.runtime_paths import RuntimePaths

FIRST_SESSION = -2
"""The first of the daemon's own sessions, which count down: connections count up, and -1 is the engine's
placeholder."""

NO_PROGRESS = {"file": "", "epoch": -1, "step": -1, "unreadable": 0, "complaint": ""}

GoOn = Callable[[Session, Hello], None]

log = logging.getLogger("prefetchd")


class DeclaredStreams:
    """Keeps the declared streams of one daemon."""

    def __init__(
        self,
        config: Config,
        config_file: Path | None,
        loop: Loop,
        engine: Engine,
        rings: StreamRings,
        paths: RuntimePaths,
        prepare: Callable[[bytes], None],
        name_waits_every_s: float,
    ) -> None:
        """Claims the directories of declared streams; begin() starts them. `prepare` is the backend's. A trainer that
        waits for the look at a dataset is told so every `name_waits_every_s`. Raises CallerError when a stream's
        directory cannot be used."""
        self._config = config
        # As the daemon was started: no reload changes it, and each names what differs (decision 0105).
        self._in_force = config.daemon
        self.config_file = config_file
        self._loop = loop
        self._engine = engine
        self._rings = rings
        self._paths = paths
        self._prepare = prepare
        self._next_session = FIRST_SESSION
        self._streams: dict[str, DeclaredStream] = {}
        self.files = FileStreams(engine, rings)
        self.files.claim(_directories(config))
        self._attaching: list[tuple[Session, Hello, GoOn]] = []
        self._name_waits_every_s = name_waits_every_s
        self._is_naming = False

    def begin(self) -> None:
        """Begins all streams. To be called once the socket is there."""
        for stream in self._config.streams:
            self._begin(stream)

    def reload(self) -> None:
        """Reads the configuration again, on a signal: nobody waits for the answer. What is wrong with it is logged, and
        changes nothing."""
        if self._engine.stopping:
            return
        if self.config_file is None:
            log.info("no configuration to read again")
            return
        try:
            self.take_on()
        except CallerError as error:
            for problem in str(error).splitlines():
                log.error("configuration not taken", extra={"fields": {"problem": problem}})

    def take_on(self, file: Path | None = None, *, replace: bool = False) -> Reloaded:
        """Takes on the configuration in `file`, by default in the file that it has. Streams that are declared as before
        are left as they are, unless they have failed. Raises CallerError, and has changed nothing then: when the file
        cannot be used, when a stream's directory cannot, and when another file is there that is not to be replaced."""
        file = self._checked_file(file, replace=replace)
        config = read_config(file)
        # Those of streams that go on are claimed by now.
        self.files.claim(_directories(config))
        before, self._config, self.config_file = self._config, config, file
        ended = self._end_what_differs(before, config)
        begun = [stream.name for stream in config.streams if stream.name not in self._streams and self._reclaim(stream)]
        for stream in config.streams:
            if stream.name in begun:
                self._begin(stream)
        # A stream that a trainer waits for may not be declared any more.
        self._attach_again()
        self._engine.configured(os.fsencode(file))
        later = changed_settings(self._in_force, config.daemon)
        if later:
            log.warning("[daemon] is read when the daemon starts: restart it", extra={"fields": {"changed": later}})
        names = [stream.name for stream in config.streams]
        log.info("configuration read", extra={"fields": {"file": str(file), "streams": len(names), "ended": ended}})
        return Reloaded(os.fsencode(file), *map(_encoded, (names, begun, ended, later)))

    def _checked_file(self, file: Path | None, *, replace: bool) -> Path:
        """Returns the file to be read. Raises CallerError when there is none, or it is not to be read."""
        had = self.config_file
        if file is None and had is None:
            raise CallerError("no configuration to read again: it was started without. Give one with --config FILE")
        if file is None or had is None or replace or file == had or _is_same(file, had):
            file = file or had
        else:
            raise CallerError(
                f"it has another configuration, {had}: `prefetchd reload --config {file}` puts this one in its place"
            )
        assert file is not None
        if not file.is_absolute():
            raise CallerError(f"the configuration {file} has no whole path; allowed: one that begins with /")
        # A pipe, for one, would be waited for.
        if file.exists() and not file.is_file():
            raise CallerError(f"{file}: cannot be read: it is no regular file")
        return file

    def _end_what_differs(self, before: Config, config: Config) -> list[str]:
        """Ends streams that are not declared as before, and those that have failed. Returns their names."""
        ended = []
        for stream in before.streams:
            declared = self._streams.get(stream.name)
            if declared is None:  # its directory could not be used
                continue
            declaration = config.stream(stream.name)
            if declaration != stream or declared.trouble:
                why = "it is not declared any more" if declaration is None else "its declaration has changed"
                declared.close("it had failed, and is begun anew" if declaration == stream else why)
                del self._streams[stream.name]
                ended.append(stream.name)
        return ended

    def _reclaim(self, stream: StreamConfig) -> bool:
        """Claims the directory of a stream that is about to begin, which one that has just ended may have given up.
        Returns False when somebody else was faster."""
        try:
            self.files.claim(_directories(Config(streams=(stream,))))
        except CallerError as error:
            log.error("configuration not taken", extra={"fields": {"problem": str(error)}})
            return False
        return True

    def attach(self, session: Session, hello: Hello, go_on: GoOn) -> None:
        """Serves a trainer that asks for a stream by name alone: `go_on` is called when it is known whether there is
        one, now or later. Raises StreamFailedError."""
        declared = self._streams.get(hello.stream)
        if declared is not None and not declared.is_settled:
            self._attaching.append((session, hello, go_on))
            self._name_later()
            return
        # One that has failed since then is told by the engine, with the error.
        if declared is not None and (declared.failure or declared.stream is None):
            raise StreamFailedError(f"the declared stream {hello.stream!r} has failed: {declared.trouble}")
        go_on(session, hello)

    def tell(self, found: dict[str, Any]) -> None:
        """Adds to the snapshot `found` what is declared."""
        for each in self._streams.values():
            each.tell_failures()
        for stream in found["streams"]:
            declared = self._streams.get(stream["name"])
            state = declared.stream if declared is not None else None
            stream["declared"] = declared is not None
            stream["progress"] = declared.about() if declared is not None else NO_PROGRESS
            stream["store_fault"] = (
                (self.files.fault_of(state.spec) or state.store_fault.reason) if state is not None else ""
            )
            stream["batches_ready"] = state.window.ready_ahead() if state is not None else 0
            stream["batches_wanted"] = wanted(state) if state is not None else 0
            stream["warm"] = state is not None and is_warm(state)
        # Out of the configuration: it is told from the first snapshot on, before any stream is begun.
        found["declared"] = [self._about(stream.name) for stream in self._config.streams]

    def _store_fault(self, stream: StreamState) -> str:
        return self.files.fault_of(stream.spec) or stream.store_fault.reason

    @property
    def pids(self) -> set[int]:
        """The processes that look at datasets."""
        return {each.pid for each in self._streams.values() if each.pid}

    def close(self) -> None:
        """Ends all streams, and waits for their processes. When the loop runs no more."""
        for declared in self._streams.values():
            declared.close()
            declared.wait()
        self.files.close()

    def _about(self, name: str) -> dict[str, Any]:
        declared = self._streams.get(name)
        return {
            "name": name,
            "settled": declared is not None and declared.is_settled,
            "failure": declared.trouble if declared is not None else "",
        }

    def _begin(self, stream: StreamConfig) -> None:
        directory = os.path.dirname(self.config_file) if self.config_file is not None else ""
        self._streams[stream.name] = DeclaredStream(
            stream,
            directory,
            self._next_session,
            self._paths,
            self._loop,
            self._engine,
            self._rings,
            self.files,
            self._prepare,
            self._attach_again,
        )
        self._next_session -= 1

    def _name_later(self) -> None:
        if self._attaching and not self._is_naming:
            self._is_naming = True
            self._loop.call_later(self._name_waits_every_s, self._name_waits)

    def _name_waits(self) -> None:
        self._is_naming = False
        for session, hello, _ in self._attaching:
            if session.is_clear:
                session.send(WaitNamed(0, 0, 0, self._streams[hello.stream].why_unsettled()))
        self._name_later()

    def _attach_again(self) -> None:
        """Answers trainers that wait for a stream that is settled, or not declared any more."""
        attaching, self._attaching = self._attaching, []
        for session, hello, go_on in attaching:
            if session.is_open:
                try:
                    self.attach(session, hello, go_on)
                except PrefetchdError as error:
                    session.refuse(error)


def _directories(config: Config) -> list[str]:
    return [stream.directory for stream in config.streams if stream.store == FILES]


def _is_same(file: Path, other: Path) -> bool:
    try:
        return file.samefile(other)
    except OSError:
        return False


def _encoded(names: list[str]) -> tuple[bytes, ...]:
    return tuple(name.encode("utf-8", "replace") for name in names)
