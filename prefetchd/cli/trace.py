"""Implements `prefetchd trace`: records what workers and trainers do, as a picture over time."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from prefetchd.cli.control_client import ControlClient
from prefetchd.cli.options import socket_option
from prefetchd.cli.trace_events import trace_json
from prefetchd.wire.messages import Done, Ints, Trace, TraceEvents
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import runtime_paths


@click.command("trace")
@socket_option
@click.option(
    "--seconds", type=click.FloatRange(0.1, 3600), default=10.0, show_default=True, help="For how long to look."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("trace.json"),
    show_default=True,
    help="Where to write it.",
)
def command(socket: str | None, seconds: float, output: Path) -> None:
    """Record which worker filled which rows when, when trainers waited, and when a stream got other workers.

    Open the file in https://ui.perfetto.dev or in chrome://tracing: a track for each worker of each stream, and one for
    each trainer. Only what ends while it looks is recorded.

    Exit code: 0 written, 1 no daemon, it ended meanwhile, or the file cannot be written.
    """
    events: list[Ints] = []
    changes: list[tuple[str, Ints, str]] = []
    names: dict[int, str] = {}
    dropped = 0
    with ControlClient(runtime_paths(socket)) as client:
        client.say(Trace(round(seconds * 1000)))
        client.wait_up_to(seconds + 10)
        with _progress(seconds) as progress:
            began_s = seen_s = time.monotonic()
            while not isinstance(message := client.hear(), Done):
                if isinstance(message, TraceEvents):
                    events += message.events
                    kinds = ["workers"] * len(message.tuned) + ["batches"] * len(message.resized)
                    whys = (why.decode("utf-8", "replace") for why in message.whys)
                    changes += zip(kinds, message.tuned + message.resized, whys)
                    names |= {n: name.decode("utf-8", "replace") for n, name in zip(message.streams, message.names)}
                    # The count so far, not a sum: each message has all that were dropped.
                    dropped = message.dropped
                now_s = min(time.monotonic(), began_s + seconds)
                progress.update(round(1000 * (now_s - seen_s)))
                seen_s = now_s
    try:
        output.write_text(json.dumps(trace_json(events, names, dropped, changes)) + "\n", "utf-8")
    except OSError as error:
        raise click.ClickException(f"{output} cannot be written: {error.strerror}") from None
    click.echo(
        one_line(
            f"{len(events) + len(changes)} events in {output}" + (f"; {dropped} more had no room" if dropped else "")
        )
    )


def _progress(seconds: float) -> Any:
    """Makes a bar on stderr, where that is a terminal."""
    return click.progressbar(length=round(1000 * seconds), label="tracing", file=sys.stderr, show_pos=False)
