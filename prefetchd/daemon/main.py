"""Runs a daemon: lock, socket, signals, loop, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from prefetchd import __version__
from prefetchd.daemon.config.daemon_config import NO_CONFIG, Config
from prefetchd.daemon.daemon_endpoint import DaemonEndpoint, clear_the_way, is_served
from prefetchd.daemon.engine.engine import Limits
from prefetchd.daemon.held import Held, decode_held, encode_held
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.process.service_notify import Notifier
from prefetchd.daemon.service import Service, StartedAs
from prefetchd.daemon.start_record import record_of, remove_record, write_record
from prefetchd.daemon.telemetry.logs import log_to
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.processes.orphans import (
    become_subreaper,
    children_in_own_session,
    end_strangers,
    kill_strangers,
    reap_strangers,
)
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.os_errors import why
from prefetchd.wire.runtime_paths import RuntimePaths, make_private

DESCRIPTORS = 65536
TELL_EVERY_S = 0.25
STRANGERS_END_WITHIN_S = 2.0
ORPHANS_EVERY_S = 0.5
FAILS_AT_ONCE_S = 60.0
"""A daemon that ends by a fault of its own within this time leaves no rings: what it adopted may be what it failed on,
and the next one would fail on that, too."""
KEEPING_SIGNAL = signal.SIGUSR1
"""Ends the daemon so that it leaves its rings for the next one. The units send it where a restart stops them."""
NOTED_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, KEEPING_SIGNAL)

log = logging.getLogger("prefetchd")


@dataclasses.dataclass(frozen=True)
class Options:
    """The ways in which a daemon may run. `log_file` None logs to stderr; `idle_exit_s` None never exits on its own;
    `supervised`: who started it may start it again when it dies; `ray`: the cluster of remote
    workers, or empty, and whether it may be insecure; `metrics`: where it answers scrapes; `notifier`: who
    is told how it is; `listening`: the socket that the service manager listens on for it. `config` was read from
    `config_file`, and is again on SIGHUP. `environment`, encoded, is that of streams that are about to come.
    `history`: the file that keeps the streams' history for good. `given` are the options
    of `prefetchd run` that were chosen, by name, for whoever starts the next one the same way."""

    limits: Limits
    nice: int = 0
    memory_bytes: int | None = None
    worker_memory_bytes: int | None = None
    linger_bytes: int | None = None
    idle_exit_s: float | None = None
    ray: str = ""
    ray_insecure: bool = False
    log_file: Path | None = None
    log_level: str = "info"
    supervised: bool = False
    metrics: str | None = None
    notifier: Notifier | None = None
    listening: socket.socket | None = None
    config: Config = NO_CONFIG
    config_file: Path | None = None
    environment: bytes = b""
    history: Path | None = None
    given: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def run_daemon(paths: RuntimePaths, options: Options, ready: Callable[[], None]) -> bool:
    """Runs a daemon on `paths.socket` until it is stopped; `ready` is called once it accepts. False, at once, when
    another daemon has that socket. Raises CallerError when the socket's directory is not private or its path is taken,
    and NoSpaceError."""
    make_private(paths.socket.parent)
    lock = LockFile(paths.lock)
    if not lock.acquire():
        return False
    try:
        if options.listening is None:
            if is_served(paths.socket):
                # Somebody has removed its lock file: it will make that again.
                return False
            # Before anything is made in the place of what a predecessor left.
            clear_the_way(paths.socket)
        log_to(options.log_file, options.log_level)
        _raise_descriptor_limit()
        generation = lock.read_number() + 1
        lock.write_number(generation)
        held = decode_held(lock.take_note())
        kill_point("daemon.start.locked")
        _serve(paths, options, lock, generation, held, ready)
    except PrefetchdError:
        raise
    except BaseException:
        log.exception("crashed")
        raise
    finally:
        lock.release()
    return True


def _serve(
    paths: RuntimePaths,
    options: Options,
    lock: LockFile,
    generation: int,
    held: Held,
    ready: Callable[[], None],
) -> None:
    with contextlib.suppress(OSError):
        # A trainer that sends us a message goes on: being woken must not take its CPU (decision 0014). All children
        # inherit this.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    # What is left of a zygote that was killed is ours to end.
    become_subreaper()
    with contextlib.ExitStack() as ending:
        ending.callback(_end_orphans)
        loop = Loop()
        ending.callback(loop.close)
        service = Service(
            loop,
            paths,
            options.limits,
            generation=generation,
            nice=options.nice,
            memory_bytes=options.memory_bytes,
            worker_memory_bytes=options.worker_memory_bytes,
            linger_bytes=options.linger_bytes,
            idle_exit_s=options.idle_exit_s,
            ray=options.ray,
            ray_insecure=options.ray_insecure,
            started_as=StartedAs(
                options.supervised, options.notifier is not None and options.notifier.has_manager, options.given
            ),
            config=options.config,
            config_file=options.config_file,
            history=options.history,
            held=held,
        )
        ending.callback(_keep_count, service, lock, paths)
        ending.callback(service.close)
        if options.metrics is not None:
            ending.callback(service.answer_scrapes(options.metrics).close)
        ending.callback(_stop_on_signals(loop, service))
        kill_point("daemon.start.deaf")
        ending.callback(DaemonEndpoint(loop, paths, lock, generation, service, options.listening).close)
        log.info(
            "started",
            extra={"fields": {"pid": os.getpid(), "version": __version__, "socket": str(paths.socket)}},
        )
        kill_point("daemon.start.listening")
        _keep_ending_orphans(loop, service)
        service.declared.begin()
        if options.listening is None:
            # A socket of the service manager is served by what that one starts.
            _record_start(paths, options)
        ready()
        if options.environment:
            service.prepare(options.environment)
        if options.notifier is not None:
            options.notifier.ready()
            _keep_telling(options.notifier, loop, service)
            # The first to be called: whatever takes time is yet to come.
            ending.callback(options.notifier.stopping)
        begun_s = time.monotonic()
        try:
            loop.run()
        except BaseException:
            if time.monotonic() - begun_s >= FAILS_AT_ONCE_S:
                service.keep_rings()
            raise
    log.info("stopped", extra={"fields": {"pid": os.getpid(), "rings_left": service.has_left_rings}})


def _record_start(paths: RuntimePaths, options: Options) -> None:
    try:
        write_record(paths, record_of(options.given, options.config_file, options.ray, os.environ))
    except OSError as error:
        log.warning("start not recorded", extra={"fields": {"why": why(error)}})


def _keep_count(service: Service, lock: LockFile, paths: RuntimePaths) -> None:
    """Keeps the number in the lock's file if rings are left: it counts the daemons whose rings are still there. Beside
    it the next daemon finds what an operator has set. Where a daemon that was asked to end leaves nothing, how it was
    started is forgotten, too."""
    if service.held:
        lock.write_note(encode_held(service.held))
    if service.has_left_rings or service.held:
        lock.keep_file()
    elif service.has_finished:
        remove_record(paths)


def _end_orphans() -> None:
    end_strangers(children_in_own_session(), STRANGERS_END_WITHIN_S)


def _keep_ending_orphans(loop: Loop, service: Service) -> None:
    """Ends orphans, again and again: their zygotes are dead, or these would have been given them."""
    known = service.child_pids
    # What our processes start is in their sessions, or in one of its own.
    if kill_strangers(known | children_in_own_session()):
        log.info("orphans ended")
    reap_strangers(known)
    loop.call_later(ORPHANS_EVERY_S, partial(_keep_ending_orphans, loop, service))


def _keep_telling(notifier: Notifier, loop: Loop, service: Service) -> None:
    """Tells the service manager how the daemon is, again and again, from the loop itself: when that hangs, it tells
    nothing."""
    notifier.came_round(time.monotonic(), service.summary())
    loop.call_later(TELL_EVERY_S, partial(_keep_telling, notifier, loop, service))


def _raise_descriptor_limit() -> None:
    """Raises the limit on descriptors: every worker, session and stream takes a few, and the usual 1024 are soon used
    up."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _stop_on_signals(loop: Loop, service: Service) -> Callable[[], None]:
    """Stops the service on SIGTERM and SIGINT, and on SIGUSR1 so that it keeps its rings for the next daemon; has it
    read its configuration on SIGHUP. Returns what is to be called when signals are not awaited any more: they cannot
    break the ending then."""
    wake, woken = socket.socketpair()
    wake.setblocking(False)
    woken.setblocking(False)
    names: list[str] = []

    def note(number: int, _frame: object) -> None:
        names.append(signal.Signals(number).name)

    for number in NOTED_SIGNALS:
        signal.signal(number, note)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def woke() -> None:
        woken.recv(64)
        told = names[:]
        names.clear()
        ending = [name for name in told if name != "SIGHUP"]
        if ending:
            service.stop(ending[-1], keep=set(ending) == {KEEPING_SIGNAL.name})
        elif told:
            service.declared.reload()

    loop.watch(woken.fileno(), woke)
    # The pair lives as long as the loop that watches it.
    loop.keep = (wake, woken)

    def ignore() -> None:
        # An interpreter that ends resets its own handlers, and a signal would kill it; SIG_IGN it leaves.
        for number in NOTED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)

    return ignore
