"""Implements `prefetchd reload`: has a daemon that runs take a configuration on."""

from __future__ import annotations

import os

import click

from prefetchd.cli.control_client import ControlClient
from prefetchd.cli.options import socket_option
from prefetchd.wire.messages import Reload, Reloaded
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths


@click.command("reload")
@socket_option
@click.option("--config", metavar="FILE", help="The file to take on. Default: the one that the daemon has.")
def command(socket: str | None, config: str | None) -> None:
    """Have the daemon read its configuration again, or take another one on; also a daemon that has none.

    Streams that are declared as before go on. Others end, with their rings, or begin. A file that cannot be used
    changes nothing. What stands in [daemon] counts from the next start on (`prefetchd restart`); what differs there is
    named.

    Exit code: 0 taken on; 1 the file cannot be used, there is none, or no daemon runs.
    """
    found = take_on(runtime_paths(socket), config, replace=True)
    click.echo(one_line(f"{os.fsdecode(found.config)}: {len(found.streams)} declared"))
    for what, names in (("ended", found.ended), ("begun", found.begun)):
        for name in _decoded(names):
            click.echo(one_line(f"{what} {name}"))
    if found.later:
        click.echo(f"from the next start on: {', '.join(_decoded(found.later))} of [daemon]; `prefetchd restart`")


def take_on(paths: RuntimePaths, config: str | None, *, replace: bool) -> Reloaded:
    """Has the daemon take the file on, by default its own. Raises NoDaemonError, and ClickException when it refuses."""
    with ControlClient(paths) as client:
        found = client.ask(Reload(os.fsencode(os.path.abspath(config)) if config else b"", replace), Reloaded)
    assert isinstance(found, Reloaded)
    return found


def _decoded(names: tuple[bytes, ...]) -> list[str]:
    return [name.decode("utf-8", "replace") for name in names]
