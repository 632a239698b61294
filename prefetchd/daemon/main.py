"""A daemon's life: lock, socket, signals, loop, and an end that leaves nothing behind."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from prefetchd import __version__
from prefetchd.daemon.engine.engine import Limits
from prefetchd.daemon.logs import log_to
from prefetchd.daemon.loop import Loop
from prefetchd.daemon.recovery import reclaim
from prefetchd.daemon.service import Service
from prefetchd.daemon.sessions import Listener
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import RuntimePaths, make_private

BACKLOG = 128

log = logging.getLogger("prefetchd")


@dataclasses.dataclass(frozen=True)
class Options:
    """How a daemon runs. `log_file` None logs to stderr; `idle_exit_s` None never exits on its own."""

    limits: Limits
    nice: int = 0
    memory_bytes: int | None = None
    idle_exit_s: float | None = None
    log_file: Path | None = None
    log_level: str = "info"
    keep_affinity: bool = True


def run_daemon(paths: RuntimePaths, options: Options, ready: Callable[[], None]) -> bool:
    """Runs a daemon on `paths.socket` until it is stopped; `ready` is called once it accepts. False, at once, when
    another daemon has that socket. Raises CallerError when the socket's directory is not private."""
    make_private(paths.socket.parent)
    lock = LockFile(paths.lock)
    if not lock.acquire():
        return False
    try:
        log_to(options.log_file, options.log_level)
        if not options.keep_affinity:
            # A trainer that started us may be bound to a few CPUs; its loading should not be.
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, range(os.cpu_count() or 1))
        generation = lock.read_number() + 1
        lock.write_number(generation)
        reclaim(paths)
        _serve(paths, options, generation, ready)
    except BaseException:
        log.exception("crashed")
        raise
    finally:
        lock.release()
    return True


def _serve(paths: RuntimePaths, options: Options, generation: int, ready: Callable[[], None]) -> None:
    with contextlib.suppress(OSError):
        # A trainer that sends us a message goes on: being woken must not take its CPU. All children inherit this.
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    loop = Loop()
    service = Service(
        loop,
        paths,
        options.limits,
        generation=generation,
        nice=options.nice,
        memory_bytes=options.memory_bytes,
        idle_exit_s=options.idle_exit_s,
    )
    try:
        service.listener = Listener(
            _listen(paths.socket), loop, service, lambda level, event, uid: _log_refusal(level, event, uid)
        )
        _stop_on_signals(loop, service)
        log.info(
            "started",
            extra={"fields": {"pid": os.getpid(), "version": __version__, "socket": str(paths.socket)}},
        )
        ready()
        loop.run()
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(paths.socket)
        service.close()
        loop.close()
        log.info("stopped", extra={"fields": {"pid": os.getpid()}})


def _listen(path: Path) -> socket.socket:
    # We hold the lock: a socket that is there belongs to a dead daemon.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    before = os.umask(0o177)
    try:
        sock.bind(os.fspath(path))
    finally:
        os.umask(before)
    sock.listen(BACKLOG)
    return sock


def _stop_on_signals(loop: Loop, service: Service) -> None:
    wake, woken = socket.socketpair()
    wake.setblocking(False)
    woken.setblocking(False)
    names: list[str] = []

    def note(number: int, _frame: object) -> None:
        names.append(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)

    def woke() -> None:
        woken.recv(64)
        if names:
            service.stop(names[-1])

    loop.watch(woken.fileno(), woke)
    # The pair lives as long as the loop that watches it.
    loop.keep = (wake, woken)


def _log_refusal(level: str, event: str, uid: int) -> None:
    log.log(getattr(logging, level.upper()), event, extra={"fields": {"uid": uid}})
