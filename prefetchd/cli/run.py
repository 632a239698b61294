"""prefetchd run: the daemon, in the foreground or detached."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TypeVar

import click

from prefetchd.cli.options import as_bytes, config_option, socket_option
from prefetchd.daemon.config import Config
from prefetchd.daemon.config_file import read_config
from prefetchd.daemon.engine.engine import Limits
from prefetchd.daemon.main import Options, run_daemon
from prefetchd.daemon.service_notify import Notifier, listening_socket
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths
from prefetchd.workers.cpu_limits import usable_cpus

STARTED, ALREADY_RUNNING, FAILED = b"started", b"already", b"failed"
Number = TypeVar("Number", int, float)
NICE, LINGER_CRASH_S, LINGER_CLEAN_S = 5, 600.0, 60.0


@click.command("run")
@socket_option
@config_option()
@click.option("--workers", type=click.IntRange(1), help="Busy workers at once, over all streams. Default: the CPUs.")
@click.option(
    "--memory",
    callback=as_bytes,
    metavar="SIZE",
    help="Bound of all rings together, as in 8GiB. Default: each ring's own.",
)
@click.option("--nice", type=click.IntRange(0, 19), help=f"Added niceness of workers. Default: {NICE}.")
@click.option(
    "--linger", type=click.FloatRange(0), help=f"Seconds a ring lives after a crash. Default: {LINGER_CRASH_S:.0f}."
)
@click.option(
    "--linger-clean",
    type=click.FloatRange(0),
    help=f"Seconds a ring lives after a clean close. Default: {LINGER_CLEAN_S:.0f}.",
)
@click.option(
    "--idle-exit", type=click.FloatRange(0), metavar="SECONDS", help="Exit after this long without streams or clients."
)
@click.option(
    "--metrics",
    metavar="ADDRESS",
    envvar="PREFETCHD_METRICS",
    help="Answer Prometheus at 127.0.0.1:PORT, [::1]:PORT or unix:PATH. Default: $PREFETCHD_METRICS, else not at all.",
)
@click.option("--detach", is_flag=True, help="Return once the daemon serves; log to a file.")
@click.option("--reset-affinity", is_flag=True, help="Use all CPUs, whatever the starter is bound to.")
@click.option("--name-waits-after", type=click.FloatRange(0), default=60.0, hidden=True)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="What is logged at least; `prefetchd log-level` changes it later.",
)
def command(
    socket: str | None,
    config: str | None,
    workers: int | None,
    memory: int | None,
    nice: int | None,
    linger: float | None,
    linger_clean: float | None,
    idle_exit: float | None,
    metrics: str | None,
    detach: bool,
    reset_affinity: bool,
    name_waits_after: float,
    log_level: str,
) -> None:
    """Run the daemon until it is stopped. In the foreground it logs to stderr, one JSON object a line.

    What is given here goes before what the configuration says; that is read again on SIGHUP.

    There is one daemon on a socket, and one socket of yours by default. SIGTERM, SIGINT and `prefetchd stop` end it in
    order.

    Exit code: 0 ended in order; 1 another daemon serves the socket, it could not start, or it crashed. With --detach:
    0 a daemon serves the socket now, 1 none could start.
    """
    found = read_config(Path(config)) if config is not None else Config()
    settings = found.daemon
    listening = None if detach else listening_socket(os.environ)
    # Who listens for us has chosen the place.
    paths = runtime_paths(listening.getsockname() if listening is not None else socket)
    # A detached daemon is nobody's service: what it inherited is meant for whoever started it.
    notifier = Notifier(os.environ)
    if reset_affinity:
        # A trainer that started us may be bound to a few CPUs; its loading should not be.
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
    options = Options(
        limits=Limits(
            workers or settings.workers or usable_cpus(),
            _first(linger_clean, settings.linger_clean_s, LINGER_CLEAN_S),
            _first(linger, settings.linger_s, LINGER_CRASH_S),
            name_waits_after_s=name_waits_after,
            name_waits_again_s=name_waits_after / 2,
        ),
        nice=_first(nice, settings.nice, NICE),
        memory_bytes=memory if memory is not None else settings.memory_bytes,
        idle_exit_s=idle_exit if idle_exit is not None else settings.idle_exit_s,
        log_file=paths.log if detach else None,
        log_level=log_level,
        supervised=not detach,
        notifier=None if detach else notifier,
        listening=listening,
        # A detached daemon is elsewhere.
        metrics=f"unix:{os.path.abspath(metrics[5:])}" if metrics and metrics.startswith("unix:") else metrics or None,
        config=found,
        # Kept whole: one that detaches changes its directory.
        config_file=Path(os.path.abspath(config)) if config is not None else None,
    )
    if detach:
        notifier.close()
        _run_detached(paths, options)
    elif not run_daemon(paths, options, lambda: None):
        raise click.ClickException(f"a daemon serves {paths.socket} already; see `prefetchd status`")


def _first(*choices: Number | None) -> Number:
    """The first that somebody has chosen; the last one is always there."""
    return next(each for each in choices if each is not None)


def _run_detached(paths: RuntimePaths, options: Options) -> None:
    told, tell = os.pipe()
    if os.fork() == 0:
        os.close(told)
        os._exit(_be_detached(paths, options, tell))
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        said = pipe.read()
    if said == ALREADY_RUNNING:
        click.echo(f"a daemon serves {paths.socket} already")
    elif said != STARTED:
        raise click.ClickException(said.removeprefix(FAILED).decode("utf-8", "replace") or f"it died; see {paths.log}")


def _be_detached(paths: RuntimePaths, options: Options, tell: int) -> int:
    os.setsid()
    # Nothing of whoever started us may be kept open or busy: not a shell's pipes and locks, not a mounted directory.
    os.chdir("/")
    os.closerange(3, tell)
    os.closerange(tell + 1, os.sysconf("SC_OPEN_MAX"))
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)

    def say(what: bytes) -> None:
        os.write(tell, what)
        os.close(tell)

    try:
        if not run_daemon(paths, options, lambda: say(STARTED)):
            say(ALREADY_RUNNING)
    except PrefetchdError as error:
        say(FAILED + str(error).encode())
        return 1
    except OSError as error:
        say(FAILED + f"{error}".encode())
        return 1
    finally:
        sys.stdout.flush()
    return 0
