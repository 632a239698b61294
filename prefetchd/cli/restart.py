"""Implements `prefetchd restart`: another daemon in the place of the one that runs, with its rings.

1. Whatever can be known before is checked before: what would be lost, the configuration, who is to start the next one.
   Then nothing has happened yet.
2. Between the two daemons the start lock is held: else a trainer starts one, with fewer options, as soon as the first
   one is gone. Whoever kills this process lets trainers do so; the rings are there.
3. A daemon that systemd runs is restarted by that. One that a person or a script runs in the foreground is left alone.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from prefetchd.cli.control_client import NoDaemonError
from prefetchd.cli.ending import end_daemon
from prefetchd.cli.losses import has_ring, losses, why_not_kept
from prefetchd.cli.options import socket_option
from prefetchd.cli.run import command as run
from prefetchd.cli.service_unit import ServiceUnit, unit_of
from prefetchd.daemon.config.config_file import read_config
from prefetchd.status.snapshot import read_report
from prefetchd.wire.errors import PrefetchdError
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths

START_LOCK_TIMEOUT_S = 60.0


@click.command("restart")
@socket_option
@click.option("--now", is_flag=True, help="Kill workers at once, whatever they are at.")
@click.option("--force", is_flag=True, help="Restart although rings are lost, or trainers end.")
@click.pass_context
def command(ctx: click.Context, socket: str | None, now: bool, force: bool) -> None:
    """Start this prefetchd in the place of the daemon that runs, with the options that it was started with.

    Rings stay, and trainers go on with what is ready in them. If this prefetchd is of another version that cannot adopt
    them, nothing is done: it says what would be lost, and --force does it all the same.

    A daemon that systemd runs is restarted by systemctl. One that runs in the foreground is left alone: whoever runs it
    is to stop it with `prefetchd stop --keep` and start it again.

    Exit code: 0 another daemon serves; 1 no daemon runs, it does not end, something would be lost, or none could start.
    """
    paths = runtime_paths(socket)
    report = read_report(paths)
    if report.snapshot is None or report.state in ("absent", "dead"):
        raise NoDaemonError(f"no daemon on {paths.socket}; `prefetchd run --detach` starts one")
    before = report.snapshot
    about = before["daemon"]
    if (lost := losses(before)) and not force:
        raise click.ClickException("\n".join(["a restart loses something (--force does it all the same):", *lost]))
    if about.get("config"):
        # Rule 1.
        read_config(Path(about["config"]))
    keep = not why_not_kept(before)
    if about.get("supervised", False):
        _unit(paths, about).restart()
    else:
        _restart_detached(ctx, paths, about, now=now, keep=keep)
    _tell(paths, before)


def _unit(paths: RuntimePaths, about: dict[str, Any]) -> ServiceUnit:
    """Returns the unit that the daemon runs in. Raises ClickException when it is a service manager's in no such way
    (rule 3)."""
    unit = unit_of(about["pid"]) if about.get("managed", False) else None
    if unit is None:
        raise click.ClickException(
            f"the daemon on {paths.socket} (pid {about['pid']}) runs in the foreground: whoever runs it is to start it "
            "again after `prefetchd stop --keep`"
        )
    return unit


def _restart_detached(ctx: click.Context, paths: RuntimePaths, about: dict[str, Any], *, now: bool, keep: bool) -> None:
    options = about.get("options", {})
    unknown = sorted(set(options) - {each.name for each in run.params})
    if unknown:
        raise click.ClickException(
            f"the daemon was started with options that this prefetchd does not have: {', '.join(unknown)}. Start it "
            "yourself, after `prefetchd stop --keep`"
        )
    lock = LockFile(paths.start_lock)
    if not lock.acquire(START_LOCK_TIMEOUT_S):
        raise click.ClickException(f"another process has been starting a daemon on {paths.socket} for too long")
    try:
        end_daemon(paths, now=now, keep=keep)
        try:
            # Invoked, and not parsed: variables of this process do not count.
            ctx.invoke(
                run, **{**options, "socket": str(paths.socket), "config": about.get("config") or None, "detach": True}
            )
        except (PrefetchdError, click.ClickException) as error:
            raise click.ClickException(
                f"the daemon has ended, and no other could start: {error}. {'Its rings are kept. ' if keep else ''}"
                "Trainers try again to start one; see `prefetchd run --detach`"
            ) from None
    finally:
        lock.release()


def _tell(paths: RuntimePaths, before: dict[str, Any]) -> None:
    """Says which rings the daemon that runs now has of the former one."""
    after = read_report(paths).snapshot
    segments = {each["ring"]["segment"] for each in after["streams"] if each["ring"]} if after is not None else set()
    click.echo("restarted")
    for stream in before["streams"]:
        if has_ring(stream):
            what = "kept" if stream["ring"]["segment"] in segments else "not kept"
            click.echo(one_line(f"{what}: {stream['name']}"))
