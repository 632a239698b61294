"""Implements `prefetchd log-level`: changes what the daemon logs from now on."""

from __future__ import annotations

import click

from prefetchd.cli.control_client import ControlClient
from prefetchd.cli.options import socket_option
from prefetchd.wire.messages import LOG_LEVELS, Done, SetLogLevel
from prefetchd.wire.runtime_paths import runtime_paths


@click.command("log-level")
@socket_option
@click.argument("level", type=click.Choice(LOG_LEVELS))
def command(socket: str | None, level: str) -> None:
    """Change what the daemon logs: debug, info, warning or error. Stays over `prefetchd restart`.

    Exit code: 0 done, 1 no daemon.
    """
    with ControlClient(runtime_paths(socket)) as client:
        client.ask(SetLogLevel(level), Done)
    click.echo(f"log level {level}")
