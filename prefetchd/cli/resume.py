"""Implements `prefetchd resume`: takes pause and drain back."""

from __future__ import annotations

import click

from prefetchd.cli.completion import stream_names
from prefetchd.cli.options import socket_option
from prefetchd.cli.streams_asked import ask
from prefetchd.wire.messages import Resume


@click.command("resume")
@socket_option
@click.argument("streams", metavar="[STREAM]...", nargs=-1, shell_complete=stream_names)
def command(socket: str | None, streams: tuple[str, ...]) -> None:
    """Fill streams again that were paused or drained, all of them by default.

    Exit code: 0 done, 1 no such stream or no daemon.
    """
    ask(socket, [Resume(name) for name in streams or ("",)], "resumed", "no stream was paused")
