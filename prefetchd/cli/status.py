"""prefetchd status: what the daemon is doing, read from memory."""

from __future__ import annotations

import json
import sys

import click

from prefetchd.cli.options import socket_option
from prefetchd.cli.render import render
from prefetchd.cli.snapshot import read_report
from prefetchd.wire.runtime_paths import runtime_paths

EXIT_CODES = {"running": 0, "hanging": 3, "dead": 3, "absent": 4}


@click.command("status")
@socket_option
@click.option("--json", "as_json", is_flag=True, help="The snapshot as JSON (docs/status.md).")
def command(socket: str | None, as_json: bool) -> None:
    """Show the daemon's streams, rings and consumers.

    Exit code: 0 running, 3 hanging or dead, 4 absent.
    """
    paths = runtime_paths(socket)
    report = read_report(paths)
    if as_json:
        found = {"state": report.state, "heartbeat_age_s": report.heartbeat_age_s, **(report.snapshot or {})}
        click.echo(json.dumps(found, indent=2))
    else:
        click.echo("\n".join(render(report, paths.socket)))
    sys.exit(EXIT_CODES[report.state])
