"""Keeps one stream that the configuration declares: from the look at its dataset to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable
from typing import Any

from prefetchd import __version__
from prefetchd.daemon.config.daemon_config import StreamConfig
from prefetchd.daemon.declared.dataset_probe import DatasetProbe
from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.engine.stream.file_backed_ring import FILES
from prefetchd.daemon.engine.stream.keeping import planned
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.segments.file_streams import FileStreams
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.telemetry.log_room import LogRoom
from prefetchd.processes.process_exit import ProcessExit, describe_exit, is_hopeless
from prefetchd.progress.file_source import FileSource
from prefetchd.progress.source import Source
from prefetchd.ring.segment import unlink
from prefetchd.wire.errors import CallerError, PrefetchdError
from prefetchd.wire.messages import PROTOCOL_VERSION, Declared, Hello, Program
from prefetchd.wire.remote_exception import summarize_exception
from prefetchd.wire.runtime_paths import RuntimePaths
from prefetchd.wire.stream_spec import MINIMUM_SLOTS, Position, StreamSpec, decode_spec, encode_spec

log = logging.getLogger("prefetchd")


class DeclaredStream:
    """Looks at the dataset at once, then keeps the stream by the daemon's own `session`, a number that no connection
    has. `prepare` is told in which environment its workers will run, as soon as that is known. `on_settled` is called
    when it is a stream of the engine, or never will be: `failure` says why."""

    def __init__(
        self,
        config: StreamConfig,
        directory: str,
        session: int,
        paths: RuntimePaths,
        loop: Loop,
        engine: Engine,
        rings: StreamRings,
        files: FileStreams,
        prepare: Callable[[bytes], None],
        on_settled: Callable[[], None],
    ) -> None:
        self.config = config
        self.session = session
        self.failure = ""
        self.error = b""
        self.is_settled = False
        self._begun_s = time.monotonic()
        self._paths = paths
        self._loop = loop
        self._engine = engine
        self._rings = rings
        self._files = files
        self._on_settled = on_settled
        self._source: Source | None = None
        self._process: DatasetProbe | None = None
        self._deaths = 0
        self._log_room = LogRoom()
        self._failure_room = LogRoom()
        self._failures_logged: set[Position] = set()
        self._has_left_out = False
        self._directory = directory
        self._prepare = prepare
        # What it finds is told by the loop, not from here: settled() looks for this stream where its maker keeps it.
        self._look()

    @property
    def stream(self) -> StreamState | None:
        """The engine's stream, while it is one."""
        return self._engine.stream_of(self.session)

    @property
    def trouble(self) -> str:
        """Why nothing will be made for it until it is begun anew; empty when there is nothing."""
        if self.failure or not self.is_settled:
            return self.failure
        stream = self.stream
        if stream is None:
            return "it was dropped, as by `prefetchd evict`; `prefetchd reload` begins it anew"
        return stream.failure[1] if stream.failure is not None else ""

    @property
    def pid(self) -> int:
        """The process that looks at the dataset, or did; 0 when there was none."""
        return self._process.pid if self._process is not None else 0

    def why_unsettled(self) -> str:
        """Says why the stream is not there yet, to a trainer that waits for it."""
        for_s = time.monotonic() - self._begun_s
        return (
            f"stream {self.config.name!r} is still being looked at: {self.config.dataset} makes it, for {for_s:.0f} s"
        )

    def about(self) -> dict[str, Any]:
        """Returns the snapshot's facts: where the stream's consumer stands, if a file tells that."""
        source = self._source
        return {
            "file": self.config.progress_file,
            "epoch": source.position[0] if source is not None and source.position is not None else -1,
            "step": source.position[1] if source is not None and source.position is not None else -1,
            "unreadable": source.unreadable if source is not None else 0,
            "complaint": source.complaint if source is not None else "",
        }

    def tell_failures(self) -> None:
        """Logs each batch that cannot be made, once: there may be no trainer that is told. To be called several times a
        second."""
        stream = self.stream
        batches = stream.window.batches.values() if stream is not None else ()
        failed = {each.position: each.error for each in batches if each.error}
        new = sorted(failed.keys() - self._failures_logged)
        texts = [summarize_exception(failed[position] or b"") for position in new]
        for (epoch, step), why in list(zip(new, texts))[: self._failure_room.admit(texts)]:
            fields = {"stream": self.config.name, "epoch": epoch, "step": step, "why": why}
            log.error("batch cannot be made", extra={"fields": fields})
        self._failures_logged = set(failed)

    def close(self, why: str = "") -> None:
        """Ends the stream; its trainers are told `why`. Idempotent."""
        if self._process is not None:
            self._process.close()
        if self._source is not None:
            self._source.close()
        stream = self.stream
        if why and stream is not None:
            self._engine.drop(stream.number, why)
        if why and self.config.store == FILES:
            self._files.give_up(self.config.directory, remove=True)

    def wait(self) -> None:
        """Waits until the process is dead. After close(), when the loop runs no more."""
        if self._process is not None:
            self._process.wait()

    def _look(self) -> None:
        config = self.config
        try:
            self._process = DatasetProbe(config, self._directory, self._paths, self._loop, self)
        except OSError as error:
            why = f"{error.filename or config.python}: {error.strerror}"
            self._loop.call_later(0.0, lambda: self.failed(f"its process cannot be started: {why}", b""))

    # --- ProbeEvents ---

    def environment_known(self, environment: bytes) -> None:
        self._prepare(environment)

    def died(self, how: ProcessExit) -> None:
        self._deaths += 1
        fields = {"stream": self.config.name, "how": str(how), "deaths": self._deaths}
        log.warning("look at the dataset ended", extra={"fields": fields})
        if is_hopeless(self._deaths, how):
            self.failed(f"it {describe_exit(how)}, {self._deaths} times in a row; its output is in the log", b"")
        else:
            self._look()

    def declared(self, message: Declared, fd: int) -> None:
        with contextlib.ExitStack() as unused:
            unused.callback(unlink, message.name)
            unused.callback(os.close, fd)
            try:
                self._begin(spec_of(self.config, decode_spec(message.spec)), message, fd, unused)
            except PrefetchdError as error:
                self.failed(str(error), b"")
                return
        self.is_settled = True
        self._on_settled()

    def failed(self, why: str, error: bytes) -> None:
        self.failure, self.error = why, error
        self.is_settled = True
        log.error("declared stream failed", extra={"fields": {"stream": self.config.name, "why": why}})
        self._on_settled()

    def printed(self, lines: list[str], left_out: int) -> None:
        room = self._log_room.admit(lines)
        for line in lines[:room]:
            log.info("output", extra={"fields": {"stream": self.config.name, "worker": 0, "line": line}})
        left_out += len(lines) - room
        if left_out and not self._has_left_out:
            self._has_left_out = True
            log.warning("output left out", extra={"fields": {"stream": self.config.name, "lines": left_out}})

    # --- from there on ---

    def _begin(self, spec: StreamSpec, message: Declared, fd: int, unused: contextlib.ExitStack) -> None:
        """Makes it a stream of the engine. The program that is taken over is not `unused` any more. Raises
        PrefetchdError."""
        session = self.session
        hello = Hello(
            PROTOCOL_VERSION,
            "trainer",
            __version__,
            os.getpid(),
            spec.name,
            spec.fingerprint,
            encode_spec(spec),
            shared=True,
        )
        found: Position | None = None
        if spec.store == FILES:
            found = self._files.find(spec)
        self._engine.hello(session, hello, time.monotonic())
        stream = self.stream
        if stream is None or stream.name != spec.name:
            if stream is not None:
                self._engine.session_closed(session, (), time.monotonic())
            raise CallerError("its name is in use by a trainer; end that, or give the stream another name")
        # A stream in another stage was adopted from a daemon that died, with its program: the fingerprint says that it
        # is the same.
        if stream.stage is Stage.AWAITING_PROGRAM:
            unused.pop_all()
            self._rings.take_program(stream, Program(message.name, message.program_bytes), fd)
            self._engine.program_arrived(session)
        if self.config.progress_file:
            self._source = FileSource(
                self.config.progress_file, self.config.poll_s, self._loop, self._moved, self._in_plan
            )
            found = self._source.position
        self._engine.keep(session, found or (0, 0), follows_progress=bool(self.config.progress_file))
        log.info("stream declared", extra={"fields": {"stream": spec.name, "fingerprint": spec.fingerprint}})

    def _moved(self, position: Position) -> None:
        self._engine.progress(self.session, position)

    def _in_plan(self, position: Position) -> Position | str:
        stream = self.stream
        return planned(stream, position) if stream is not None else position


def spec_of(config: StreamConfig, found: StreamSpec) -> StreamSpec:
    """Returns the spec that the look at the dataset has `found`, with what the configuration says of how the stream is
    kept."""
    return dataclasses.replace(
        found,
        name=config.name,
        buffer_bytes=config.buffer_bytes,
        buffer_batches=config.buffer_batches,
        minimum_slots=MINIMUM_SLOTS,
        low_watermark=config.low_watermark,
        high_watermark=config.high_watermark,
        store=config.store,
        directory=config.directory,
        epochs=config.epochs,
    )
