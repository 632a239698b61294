"""Implements `prefetchd warm`: returns when declared streams are filled, for scripts that start a job then."""

from __future__ import annotations

import os.path
import time
from pathlib import Path

import click

from prefetchd.cli.options import config_option, socket_option
from prefetchd.cli.patience import Patience
from prefetchd.cli.run import command as run
from prefetchd.cli.snapshot import read_report
from prefetchd.daemon.config.config_file import read_config
from prefetchd.daemon.config.daemon_config import Config
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths

LOOK_AGAIN_S = 0.1


@click.command("warm")
@socket_option
@config_option(required=True)
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up after so long. Default: never.")
@click.pass_context
def command(ctx: click.Context, socket: str | None, config: str, timeout: float | None) -> None:
    """Return once each declared stream has as many batches ready as its low watermark, or as its buffer holds.

    Starts a daemon with this configuration if none runs; one that runs must have been started with it.

    Exit code: 0 filled, 1 they will never be, 3 --timeout has come first.
    """
    declared = read_config(Path(config))
    paths = runtime_paths(socket)
    if not _is_served(paths):
        ctx.invoke(run, socket=socket, config=os.path.abspath(config), detach=True, name_waits_after=60.0)
    deadline_s = time.monotonic() + timeout if timeout is not None else None
    with Patience("filling") as patience:
        while (cold := _cold(paths, declared)) is not None:
            if deadline_s is not None and time.monotonic() >= deadline_s:
                click.echo(f"not warm within {timeout:g} s: {one_line(cold)}", err=True)
                ctx.exit(3)
            patience.go_on(cold)
            time.sleep(LOOK_AGAIN_S)


def _is_served(paths: RuntimePaths) -> bool:
    try:
        return read_report(paths).state in ("running", "hanging")
    except ProtocolError:
        return True


def _cold(paths: RuntimePaths, declared: Config) -> str | None:
    """Describes what is still to be filled; None when nothing is. Raises ClickException when it never will be."""
    try:
        report = read_report(paths)
    except ProtocolError:
        return "the daemon is starting"
    if report.state in ("absent", "dead") or report.snapshot is None:
        raise click.ClickException(f"no daemon runs on {paths.socket}; see {paths.log}")
    known = {each["name"]: each for each in report.snapshot.get("declared", [])}
    streams = {each["name"]: each for each in report.snapshot["streams"]}
    for stream in declared.streams:
        if stream.name not in known:
            raise click.ClickException(
                f"the daemon on {paths.socket} does not declare {stream.name!r}: start it with this configuration, or "
                "send it SIGHUP to read that again"
            )
        failure = known[stream.name]["failure"] or streams.get(stream.name, {}).get("failure")
        if failure:
            raise click.ClickException(f"stream {stream.name!r} has failed: {failure}")
        found = streams.get(stream.name)
        if found is None or not found["warm"]:
            return f"stream {stream.name!r} has {found['batches_ready'] if found is not None else 0} batches ready"
    return None
