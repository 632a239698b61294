"""Implements `prefetchd evict`: drops a stream and frees its memory."""

from __future__ import annotations

import click

from prefetchd.cli.completion import stream_names
from prefetchd.cli.options import socket_option
from prefetchd.cli.streams_asked import ask
from prefetchd.wire.messages import Evict


@click.command("evict")
@socket_option
@click.option("--force", is_flag=True, help="Also while a trainer consumes it: its next() raises.")
@click.argument("stream", shell_complete=stream_names)
def command(socket: str | None, force: bool, stream: str) -> None:
    """Drop STREAM: its ring, its program and its processes.

    For a ring that lingers and whose memory is needed now. A trainer that wants the stream afterwards gets it anew.

    Exit code: 0 done, 1 no such stream, it is in use, or no daemon.
    """
    ask(socket, [Evict(stream, force)], "evicted", "nothing")
