"""Puts the daemon together: what tells the engine, what carries out its decisions, and the life of it all."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from prefetchd import __version__
from prefetchd.daemon.closing import Closing
from prefetchd.daemon.config.daemon_config import NO_CONFIG, Config
from prefetchd.daemon.declared.declared_streams import DeclaredStreams
from prefetchd.daemon.engine.engine import Engine, Limits
from prefetchd.daemon.engine.trainers import Identity
from prefetchd.daemon.held import NOTHING_HELD, Held
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.segments.recovery import empty_programs, reclaim_programs
from prefetchd.daemon.segments.status_segment import StatusSegment
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.shell.autotune import Autotune
from prefetchd.daemon.shell.backend_events import WorkerEvents
from prefetchd.daemon.shell.command_executor import CommandExecutor
from prefetchd.daemon.shell.control import Control
from prefetchd.daemon.shell.leavers import Leavers
from prefetchd.daemon.shell.publishing import Publishing
from prefetchd.daemon.shell.remote_shell import RemoteShell
from prefetchd.daemon.shell.session_events import TrainerEvents
from prefetchd.daemon.sockets.listener import Listener
from prefetchd.daemon.sockets.scrapes import Scrapes, listen_for_scrapes
from prefetchd.daemon.telemetry.history_log import HistoryLog
from prefetchd.daemon.telemetry.metrics import Birth, snapshot
from prefetchd.daemon.telemetry.stats_sampler import StatsSampler
from prefetchd.daemon.telemetry.tracing import Tracing
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.ring.memory_limits import free_bytes
from prefetchd.supervisor.cpu_limits import usable_cpus
from prefetchd.wire.errors import CallerError
from prefetchd.wire.layout_versions import LAYOUTS
from prefetchd.wire.messages import PROTOCOL_VERSION, Message
from prefetchd.wire.runtime_paths import SHARED_MEMORY, RuntimePaths

STATUS_INTERVAL_S = 0.25
GOLDEN_SHARE = 0.618
FINISH_WITHIN_S = 2.0
RECLAIM_EVERY_S = 2.0
FINISH_LOOK_AGAIN_S = 0.01
LINGER_SHARE = 4

log = logging.getLogger("prefetchd")


@dataclasses.dataclass(frozen=True)
class StartedAs:
    """Says how the daemon was started, for whoever restarts it. `supervised`: its starter may start it again when it
    dies; `managed`: that is a service manager. `options` are those of `prefetchd run` that were chosen, by name."""

    supervised: bool = False
    managed: bool = False
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Service:
    """One daemon without its socket. Whoever opens that has `session_events` told of who connects, and calls
    listen()."""

    def __init__(
        self,
        loop: Loop,
        paths: RuntimePaths,
        limits: Limits,
        *,
        generation: int,
        nice: int = 0,
        memory_bytes: int | None = None,
        worker_memory_bytes: int | None = None,
        linger_bytes: int | None = None,
        idle_exit_s: float | None = None,
        ray: str = "",
        ray_insecure: bool = False,
        started_as: StartedAs = StartedAs(),
        config: Config = NO_CONFIG,
        config_file: Path | None = None,
        history: Path | None = None,
        held: Held = NOTHING_HELD,
    ) -> None:
        """`held` is what an operator has set in the daemon before, which was restarted in order."""
        self.loop = loop
        self.held = NOTHING_HELD
        """What an operator has set here, for the next daemon; only after stop(keep=True)."""
        told_config = os.fsencode(config_file) if config_file is not None else b""
        self.engine = Engine(
            limits,
            Identity(
                __version__, os.getpid(), generation, started_as.supervised, told_config, managed=started_as.managed
            ),
        )
        self.engine.hold(held.streams)
        self._begun_log_level = log.level
        if held.log_level:
            log.setLevel(held.log_level.upper())
        self._paths = paths
        self._started_as = started_as
        self._generation = generation
        self._idle_exit_s = idle_exit_s
        self._most_linger_bytes = linger_bytes
        self._idle_since_s = time.monotonic()
        self._finishes = False
        self._keeps = False
        self._reclaim_at_s = 0.0
        self._empty_programs: frozenset[str] = frozenset()
        self._birth = Birth()
        self._rings = StreamRings(
            loop,
            self.engine,
            paths,
            generation=generation,
            memory_bytes=memory_bytes,
            # The backend needs the rings, so it is made after them.
            is_burying=lambda: self._backend.is_burying,
        )
        self._publishing = Publishing(self.engine, self._rings)
        tracing = Tracing(loop, self.engine)
        self._workers = WorkerEvents(loop, self.engine, self._publishing, self._rings, tracing, nice=nice)
        self._backend = backend = self._workers.backend
        printed, stall_reports = self._workers.printed, self._workers.stall_reports
        remote = RemoteShell(loop, self.engine, self._rings, printed, tracing, ray, insecure=ray_insecure, nice=nice)
        self._bridges = remote.bridges
        self._executor = CommandExecutor(
            self.engine, backend, self._publishing, self._rings, printed, stall_reports, remote
        )
        control = Control(self.engine, tracing, generation, self._asked_to_stop, backend.prepare, self._take_on)
        self.declared = DeclaredStreams(
            config,
            config_file,
            loop,
            self.engine,
            self._rings,
            paths,
            backend.prepare,
            limits.name_waits_again_s,
        )
        self._leavers = Leavers(loop, self.engine)
        self.session_events = TrainerEvents(
            loop,
            self.engine,
            self._publishing,
            self._rings,
            backend,
            self._workers.fork_taken,
            control,
            tracing,
            paths,
            self.declared,
            self._leavers,
        )
        self._stats = StatsSampler(self.engine, self._rings.resources, backend)
        self._cpus = usable_cpus()
        self._autotune = Autotune(
            self.engine, self._stats, backend, self._rings, tracing, self._cpus, worker_memory_bytes
        )
        self._history = HistoryLog(history or paths.history, kept=history is not None)
        self._beat = 0.0
        self.status = StatusSegment(paths, generation)
        self._closing = Closing(
            paths, self.status, self._rings, self._leavers, backend, self._bridges, self.declared, self._publishing
        )
        loop.after_each(self._executor.run_commands)
        # Before anybody can connect: a trainer that comes back finds its ring, and status has a snapshot to show.
        self._rings.adopt(config.ram_disks)
        self._tick()

    def prepare(self, environment: bytes) -> None:
        """Begins to import what streams of that environment, encoded, are likely to need."""
        self._backend.prepare(environment)

    def answer_scrapes(self, address: str) -> Scrapes:
        """Serves metrics at `address` until the result is closed. Raises CallerError."""
        try:
            from prefetchd.daemon.telemetry.prometheus import CONTENT_TYPE, EngineMetrics
        except ImportError:
            raise CallerError("--metrics needs prometheus_client: pip install prometheus-client") from None
        metrics = EngineMetrics(self.engine, self._stats, self._snapshot)
        return Scrapes(self.loop, listen_for_scrapes(address), metrics.text, CONTENT_TYPE)

    def summary(self) -> str:
        """Returns one line for people."""
        pool, streams = self.engine.pool, len(self.engine.streams)
        busy, of = sum(each.busy for each in pool.workers.values()), pool.limit or len(pool.workers)
        return f"{streams} {'stream' if streams == 1 else 'streams'}, {busy} of {of} workers busy"

    @property
    def has_left_rings(self) -> bool:
        """Whether close() has left rings for the next daemon."""
        return self._closing.has_left_rings

    @property
    def has_finished(self) -> bool:
        """True once the daemon was asked to end, or ends as nothing uses it; False where it fails."""
        return self._finishes

    @property
    def child_pids(self) -> set[int]:
        """The children of this process that somebody here reaps."""
        return self._backend.own_pids | self._bridges.own_pids | self.declared.pids

    def listen(self, listener: Listener) -> None:
        """Takes the listener's sessions as the daemon's from now on."""
        self._publishing.listener = listener

    def stop(self, reason: str, *, now: bool = False, keep: bool = False) -> None:
        """Ends in order: no task is begun any more, those that are under way may end within FINISH_WITHIN_S, sessions
        are told, streams dropped, then the loop stops. With `now` no task is waited for. With `keep` streams are left
        for the next daemon on the socket, unless another call has asked to drop them (decision 0104)."""
        if self.engine.stopping:
            return
        self._keeps = keep and (self._keeps or not self._finishes)
        if not self._finishes:
            self._finishes = True
            log.info("stopping", extra={"fields": {"reason": reason} | ({"keeps": True} if self._keeps else {})})
            self.engine.finish()
            self._finish(reason, time.monotonic() + FINISH_WITHIN_S)
        if now:
            self._end(reason)

    def keep_rings(self) -> None:
        """Has close() leave rings for the next daemon, as a kill would: this one has failed. Not once it was asked to
        drop them."""
        self._keeps = self._keeps or not self._finishes

    def _asked_to_stop(self, reason: str, now: bool, keep: bool) -> None:
        self.stop(reason, now=now, keep=keep)

    def _take_on(self, file: Path | None, replace: bool) -> Message:
        if self._finishes:
            raise CallerError("it is stopping")
        answer = self.declared.take_on(file, replace=replace)
        # Whoever gets the answer may look at once.
        self._write_status()
        return answer

    def _write_status(self) -> None:
        self.status.write(self._snapshot())

    def _finish(self, reason: str, until_s: float) -> None:
        if self.engine.is_busy and time.monotonic() < until_s:
            self.loop.call_later(FINISH_LOOK_AGAIN_S, partial(self._finish, reason, until_s))
        else:
            self._end(reason)

    def _end(self, reason: str) -> None:
        if self.engine.stopping:
            return
        if self._keeps:
            changed = log.level != self._begun_log_level
            self.held = Held(self.engine.held, logging.getLevelName(log.level).lower() if changed else "")
        self.engine.stop(reason, keep=self._keeps)
        kill_point("daemon.stop.begun")
        if self._publishing.listener is not None:
            self._publishing.listener.close()
        self.loop.call_later(0.0, self.loop.stop)

    def close(self) -> None:
        """Closes everything; nothing is left behind, but what is kept for the next daemon. After the loop has ended."""
        kill_point("daemon.close.begun")
        self._history.close(drop=not self._keeps)
        if self._keeps:
            self._closing.keep()
        else:
            self._closing.drop()

    def _linger_bytes(self) -> int | None:
        """Returns how many bytes rings without a consumer may take: by default a quarter of what there would be without
        them."""
        if self._most_linger_bytes is not None:
            return self._most_linger_bytes
        with contextlib.suppress(OSError):
            return (free_bytes(SHARED_MEMORY) + self.engine.registry.lingering_bytes) // LINGER_SHARE
        return None

    def _tick(self) -> None:
        now_s = time.monotonic()
        # Before any ring is read.
        self._rings.drop_cut()
        self._executor.run_commands()
        self._rings.look_for_the_dead()
        self._leavers.look()
        self.engine.tick(now_s, self._linger_bytes())
        self._workers.tick(now_s)
        self.declared.files.look(now_s)
        self._executor.run_commands()
        self._stats.observe(now_s)
        self._autotune.look(now_s)
        self._executor.run_commands()
        found = self._snapshot()
        self.status.write(found)
        self._history.note(found, now_s)
        listener = self._publishing.listener
        if listener is not None:
            listener.end_silent(now_s)
        if now_s >= self._reclaim_at_s:
            # Programs of trainers that died, or were dropped, before they handed them over.
            self._reclaim_at_s = now_s + RECLAIM_EVERY_S
            reclaim_programs(self._paths, empty=self._empty_programs)
            self._empty_programs = empty_programs(self._paths)
        if self._publishing.sessions or self.engine.streams:
            self._idle_since_s = now_s
        elif self._idle_exit_s is not None and now_s - self._idle_since_s > self._idle_exit_s:
            self.stop(f"idle for {self._idle_exit_s:.0f} s")
        # Not in step with a trainer that does something at an even pace: shares of time are counted here.
        self._beat = (self._beat + GOLDEN_SHARE) % 1.0
        self.loop.call_later(STATUS_INTERVAL_S * (0.8 + 0.4 * self._beat), self._tick)

    def _snapshot(self) -> dict[str, Any]:
        found = snapshot(self.engine, self._rings.resources, self._backend, self._stats, self._about(), self._cpus)
        self.declared.tell(found)
        self._autotune.tell(found)
        return found

    def _about(self) -> dict[str, Any]:
        return {
            "pid": os.getpid(),
            "software": __version__,
            "protocol": PROTOCOL_VERSION,
            "generation": self._generation,
            "socket": str(self._paths.socket),
            "log": str(self._paths.log),
            "history": str(self._history.path),
            **self._birth.about(),
            "sessions": len(self._publishing.sessions),
            "supervised": self._started_as.supervised,
            "managed": self._started_as.managed,
            "options": dict(self._started_as.options),
            "config": str(self.declared.config_file or ""),
            "layouts": LAYOUTS,
        }
