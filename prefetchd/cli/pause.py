"""Implements `prefetchd pause`: makes the daemon fill nothing more."""

from __future__ import annotations

import click

from prefetchd.cli.completion import stream_names
from prefetchd.cli.options import socket_option
from prefetchd.cli.streams_asked import ask
from prefetchd.wire.messages import Pause


@click.command("pause")
@socket_option
@click.argument("streams", metavar="[STREAM]...", nargs=-1, shell_complete=stream_names)
def command(socket: str | None, streams: tuple[str, ...]) -> None:
    """Stop filling streams, all of them by default, until `prefetchd resume`.

    Batches that are ready are still served; a trainer that has used them up waits. Tasks that are under way end.
    Workers stay, with their memory: `prefetchd drain` ends them too. They stay
    paused over `prefetchd restart`; a daemon that is started after a kill, or after `prefetchd stop`, fills them.

    Exit code: 0 done, 1 no such stream or no daemon.
    """
    ask(socket, [Pause(name) for name in streams or ("",)], "paused", "no streams")
