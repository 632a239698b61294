"""Implements `prefetchd logs`: shows the daemon's log, for reading or as it is."""

from __future__ import annotations

import json
import time
from collections import deque
from pathlib import Path

import click

from prefetchd.cli.options import socket_option
from prefetchd.wire.printable import one_line, printable
from prefetchd.wire.runtime_paths import runtime_paths

POLL_S = 0.2


@click.command("logs")
@socket_option
@click.option(
    "-n", "--lines", type=click.IntRange(0), default=50, show_default=True, help="How many of the last lines."
)
@click.option("-f", "--follow", is_flag=True, help="Go on as the log grows.")
@click.option("--json", "as_json", is_flag=True, help="The lines as they are, one JSON object each.")
def command(socket: str | None, lines: int, follow: bool, as_json: bool) -> None:
    """Show the log of a daemon that was started by a client or with --detach.

    A daemon in the foreground logs to its stderr, one under systemd to the journal. `prefetchd log-level` changes what
    is logged.

    Exit code: 0 shown, 1 there is no log.
    """
    path = runtime_paths(socket).log
    if not path.exists():
        raise click.ClickException(f"no log at {path}; a daemon in the foreground logs to its terminal")
    with path.open() as log:
        for line in deque(log, lines):
            click.echo(line.rstrip("\n") if as_json else readable(line))
        while follow:
            line = log.readline()
            if line:
                click.echo(line.rstrip("\n") if as_json else readable(line))
            # Another file has the name now: its lines are read from the first one on.
            elif _was_rotated(path, log.fileno()):
                log.close()
                log = path.open()
            else:
                time.sleep(POLL_S)


def readable(line: str) -> str:
    """Formats one log line for people: time, level, event, fields."""
    try:
        found = json.loads(line)
        stamp, level, event = found.pop("time"), found.pop("level"), found.pop("event")
    except (ValueError, KeyError, AttributeError, TypeError):
        return one_line(line.rstrip("\n"))
    trace = found.pop("traceback", None)
    fields = "  ".join(f"{key}={value}" for key, value in found.items())
    text = one_line(f"{stamp}  {level:7}  {event}  {fields}".rstrip())
    return f"{text}\n{printable(str(trace))}" if trace else text


def _was_rotated(path: Path, fd: int) -> bool:
    import os

    try:
        return os.stat(path).st_ino != os.fstat(fd).st_ino
    except FileNotFoundError:
        return False
