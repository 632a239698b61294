"""Asks the daemon to do something with streams, and prints with which it has."""

from __future__ import annotations

from collections.abc import Sequence

import click

from prefetchd.cli.control_client import ControlClient
from prefetchd.wire.messages import Done, Message
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import runtime_paths


def ask(socket: str | None, requests: Sequence[Message], what: str, nothing: str) -> list[str]:
    """Sends the requests one after another; prints "WHAT NAME" for each stream that one was done to, or `nothing`.
    Raises ClickException when the daemon refuses one, or is not there."""
    names: list[str] = []
    for request in requests:
        with ControlClient(runtime_paths(socket)) as client:
            done = client.ask(request, Done)
        assert isinstance(done, Done)
        names += [name.decode("utf-8", "replace") for name in done.streams]
    for name in names:
        click.echo(f"{what} {one_line(name)}")
    if not names:
        click.echo(nothing)
    return names
