"""Implements `prefetchd status`: shows what the daemon is doing, read from memory."""

from __future__ import annotations

import json
import shutil
import sys
from typing import Any

import click

from prefetchd.cli.colours import coloured
from prefetchd.cli.options import socket_option
from prefetchd.cli.render import render
from prefetchd.diagnosis.health import EXIT_CODES
from prefetchd.status.memory import add_pss
from prefetchd.status.snapshot import read_report
from prefetchd.status.status_object import status_object
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths

WIDEST = 140


@click.command("status")
@socket_option
@click.option("--json", "as_json", is_flag=True, help="One JSON object: the contract in docs/status.md.")
@click.option("--watch", is_flag=True, help="A live screen, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds between two looks of --watch.",
)
def command(socket: str | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show the daemon's streams: rings, rates, consumers and workers, and what limits each.

    It is read from memory that the daemon writes four times a second: it answers also when the daemon hangs or is dead,
    and says so.

    \b
    In a ring's bar:  # ready   = leased   - kept behind   + filling   . free

    Exit code: 0 healthy, 1 not to be read, 3 degraded (the daemon hangs or is dead, a stream has failed, a ring's name
    was removed, or workers were killed for memory), 4 absent.
    """
    if as_json and watch:
        raise click.UsageError("--json and --watch exclude each other; call status --json again and again instead")
    paths = runtime_paths(socket)
    if watch:
        from prefetchd.cli.watch import watch as live

        live(lambda: _look(paths), paths, interval)
        return
    found = _look(paths)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        width = min(WIDEST, shutil.get_terminal_size().columns)
        click.echo(coloured("\n".join(render(found, paths.socket, width)), sys.stdout))
    sys.exit(EXIT_CODES[found["health"]])


def _look(paths: RuntimePaths) -> dict[str, Any]:
    report = read_report(paths)
    if report.snapshot is not None and report.state != "dead":
        add_pss(report.snapshot)
    return status_object(report)
