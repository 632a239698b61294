"""Implements `prefetchd stop`: ends the daemon in order."""

from __future__ import annotations

import click

from prefetchd.cli.control_client import NoDaemonError
from prefetchd.cli.ending import end_daemon
from prefetchd.cli.losses import has_ring, why_not_kept
from prefetchd.cli.options import socket_option
from prefetchd.daemon.start_record import remove_record
from prefetchd.status.snapshot import read_report
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths


@click.command("stop")
@socket_option
@click.option("--now", is_flag=True, help="Kill workers at once, whatever they are at.")
@click.option("--keep", is_flag=True, help="Leave the rings: the next daemon on this socket adopts them.")
def command(socket: str | None, now: bool, keep: bool) -> None:
    """Stop the daemon and wait until it is gone. Trainers that use it start another one when they need it.

    Workers may finish what they are at, for two seconds; rings go with the daemon, unless you --keep them. Then no
    batch that is ready is made again, and trainers go on with theirs meanwhile. `prefetchd restart` stops and starts.

    Exit code: 0 gone, or there was none; 1 it does not answer, does not end, or cannot keep its rings.
    """
    paths = runtime_paths(socket)
    try:
        kept = keep and _keeps_rings(paths)
        end_daemon(paths, now=now, keep=keep)
    except NoDaemonError as none:
        if not keep:
            remove_record(paths)
        click.echo(one_line(none.message))
        return
    click.echo(
        "stopped; its rings are kept (`prefetchd doctor --fix` removes what nobody adopts)" if kept else "stopped"
    )


def _keeps_rings(paths: RuntimePaths) -> bool:
    """Returns whether the daemon has rings to keep. Raises ClickException when it would drop them, or none of this
    version could adopt them."""
    report = read_report(paths)
    if report.state in ("absent", "dead") or report.snapshot is None:
        return False
    if why := why_not_kept(report.snapshot):
        raise click.ClickException(
            f"its rings cannot be kept: {why}. Without --keep it is stopped, and they are dropped"
        )

    return any(map(has_ring, report.snapshot["streams"]))
