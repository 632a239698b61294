"""Implements `prefetchd run`: runs the daemon, in the foreground or detached."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from prefetchd.cli.detached import (
    LINGER_CLEAN_S,
    LINGER_CRASH_S,
    NICE,
    checked_cluster,
    first_chosen,
    metrics_address,
    run_detached,
    use_all_cpus,
)
from prefetchd.cli.options import as_bytes, config_option, socket_option
from prefetchd.daemon.config.config_file import read_config
from prefetchd.daemon.config.daemon_config import Config
from prefetchd.daemon.engine.engine import Limits
from prefetchd.daemon.main import Options, run_daemon
from prefetchd.daemon.process.init_process import leave_first_process
from prefetchd.daemon.process.service_notify import Notifier, listening_socket
from prefetchd.supervisor.cpu_limits import usable_cpus
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import METRICS_VARIABLE, RAY_VARIABLE, runtime_paths


@click.command("run")
@socket_option
@config_option()
@click.option("--workers", type=click.IntRange(1), help="Busy workers at once, over all streams. Default: no bound.")
@click.option(
    "--autotune/--no-autotune",
    default=None,
    help="Find out how many workers a stream needs that says no number, and how large a buffer. Default: yes.",
)
@click.option(
    "--memory",
    callback=as_bytes,
    metavar="SIZE",
    help="Bound of all rings together, as in 8GiB. Default: each ring's own.",
)
@click.option(
    "--worker-memory",
    callback=as_bytes,
    metavar="SIZE",
    help="Bound of the workers together that the daemon adds by itself. Default: 3/4 of what is free.",
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
    "--linger-memory",
    callback=as_bytes,
    metavar="SIZE",
    help="Bound of all rings without a trainer, but the last one. Default: a quarter of the free shared memory.",
)
@click.option(
    "--idle-exit", type=click.FloatRange(0), metavar="SECONDS", help="Exit after this long without streams or clients."
)
@click.option(
    "--metrics",
    metavar="ADDRESS",
    envvar=METRICS_VARIABLE,
    help="Answer Prometheus at 127.0.0.1:PORT, [::1]:PORT or unix:PATH. Default: $PREFETCHD_METRICS, else not at all.",
)
@click.option(
    "--ray",
    metavar="ADDRESS",
    envvar=RAY_VARIABLE,
    help="The Ray cluster of remote workers: HOST:PORT, or auto. Default: $PREFETCHD_RAY, else none.",
)
@click.option("--ray-insecure", is_flag=True, default=None, help="Use a cluster that asks for no token and has no TLS.")
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
@click.pass_context
def command(
    ctx: click.Context,
    socket: str | None,
    config: str | None,
    workers: int | None,
    autotune: bool | None,
    memory: int | None,
    worker_memory: int | None,
    nice: int | None,
    linger: float | None,
    linger_clean: float | None,
    linger_memory: int | None,
    idle_exit: float | None,
    metrics: str | None,
    ray: str | None,
    ray_insecure: bool | None,
    detach: bool,
    reset_affinity: bool,
    name_waits_after: float,
    log_level: str,
) -> None:
    """Run the daemon until it is stopped. In the foreground it logs to stderr, one JSON object a line.

    What is given here goes before what the configuration says; `prefetchd reload` has that read again.

    There is one daemon on a socket, and one socket of yours by default. SIGTERM, SIGINT and `prefetchd stop` end it in
    order.

    Exit code: 0 ended in order; 1 another daemon serves the socket, it could not start, or it crashed. With --detach:
    0 a daemon serves the socket now, 1 none could start.
    """
    leave_first_process()
    found = read_config(Path(config)) if config is not None else Config()
    settings = found.daemon
    is_tuned = bool(first_chosen(autotune, settings.autotune, True))
    if not is_tuned and (worker_memory, settings.worker_memory_bytes) != (None, None):
        raise click.UsageError(
            "--worker-memory (`[daemon] worker_memory`) bounds the workers that --autotune (`[daemon] autotune`) adds, "
            "and that is off"
        )
    listening = None if detach else listening_socket(os.environ)
    # Who listens for us has chosen the place.
    paths = runtime_paths(listening.getsockname() if listening is not None else socket)
    # A detached daemon is nobody's service: what it inherited is meant for whoever started it.
    notifier = Notifier(os.environ)
    if reset_affinity:
        use_all_cpus()
    is_insecure = bool(first_chosen(ray_insecure, settings.ray_insecure, False))
    cluster = checked_cluster(ray or settings.ray or "", insecure=is_insecure)
    options = Options(
        limits=Limits(
            workers or settings.workers or 0,
            usable_cpus(),
            first_chosen(linger_clean, settings.linger_clean_s, LINGER_CLEAN_S),
            first_chosen(linger, settings.linger_s, LINGER_CRASH_S),
            autotune=is_tuned,
            remote=bool(cluster),
            name_waits_after_s=name_waits_after,
            name_waits_again_s=name_waits_after / 2,
        ),
        nice=first_chosen(nice, settings.nice, NICE),
        memory_bytes=memory if memory is not None else settings.memory_bytes,
        worker_memory_bytes=worker_memory if worker_memory is not None else settings.worker_memory_bytes,
        linger_bytes=linger_memory if linger_memory is not None else settings.linger_bytes,
        ray=cluster,
        ray_insecure=is_insecure,
        idle_exit_s=idle_exit if idle_exit is not None else settings.idle_exit_s,
        log_file=paths.log if detach else None,
        log_level=log_level,
        supervised=not detach,
        notifier=None if detach else notifier,
        listening=listening,
        metrics=metrics_address(metrics),
        config=found,
        # Kept whole: one that detaches changes its directory.
        config_file=Path(os.path.abspath(config)) if config is not None else None,
        history=Path(settings.history) if settings.history else None,
        given=_given(ctx, metrics_address(metrics)),
    )
    if detach:
        notifier.close()
        if not run_detached(paths, options):
            click.echo(one_line(f"a daemon serves {paths.socket} already"))
    elif not run_daemon(paths, options, lambda: None):
        raise click.ClickException(f"a daemon serves {paths.socket} already; see `prefetchd status`")


def _given(ctx: click.Context, metrics: str | None) -> dict[str, Any]:
    """Returns the options that were chosen, for whoever starts this daemon again; where it is and what it reads is told
    apart from them."""
    given: dict[str, Any] = {"metrics": metrics} if metrics else {}
    for each in command.params:
        value = ctx.params.get(str(each.name))
        is_chosen = value is not None and value != each.get_default(ctx)
        if is_chosen and each.name not in ("socket", "config", "detach", "metrics"):
            given[str(each.name)] = value
    return given
