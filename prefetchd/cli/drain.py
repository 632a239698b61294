"""Implements `prefetchd drain`: stops filling, and gives CPUs and the workers' memory back."""

from __future__ import annotations

import time

import click

from prefetchd.cli.completion import stream_names
from prefetchd.cli.options import socket_option
from prefetchd.cli.patience import Patience
from prefetchd.cli.streams_asked import ask
from prefetchd.status.snapshot import read_report
from prefetchd.wire.messages import Pause
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths

LOOK_EVERY_S = 0.1


@click.command("drain")
@socket_option
@click.option(
    "--timeout",
    type=click.FloatRange(0),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for tasks that are under way.",
)
@click.argument("streams", metavar="[STREAM]...", nargs=-1, shell_complete=stream_names)
def command(socket: str | None, timeout: float, streams: tuple[str, ...]) -> None:
    """Stop filling streams, all of them by default, and end their processes; wait until these are gone.

    Rings stay, and batches that are ready are still served. `prefetchd resume` starts the processes again. Use it to
    have the machine for something else for a while.

    Exit code: 0 done, 1 no such stream, no daemon, or tasks are still under way after --timeout: they go on, and the
    processes end after them.
    """
    names = ask(socket, [Pause(name, drain=True) for name in streams or ("",)], "drained", "no streams")
    until_s = time.monotonic() + timeout
    with Patience("waiting for tasks that are under way") as patience:
        while left := _with_processes(runtime_paths(socket), names):
            if time.monotonic() >= until_s:
                raise click.ClickException(
                    f"after {timeout:.0f} s tasks are under way: {', '.join(left)}; `prefetchd status` shows at what"
                )
            time.sleep(LOOK_EVERY_S)
            patience.go_on()


def _with_processes(paths: RuntimePaths, names: list[str]) -> list[str]:
    """Returns those of the streams that have processes. What a daemon that has gone had, has gone with it."""
    report = read_report(paths)
    if report.snapshot is None or report.state == "dead":
        return []
    streams = report.snapshot["streams"]
    return [each["name"] for each in streams if each["name"] in names and (each["workers"] or not each["paused"])]
