"""Implements `prefetchd warm`: returns when declared streams are filled, for scripts that start a job then."""

from __future__ import annotations

import os.path
import time
from pathlib import Path
from typing import Any

import click

from prefetchd.cli.control_client import NoDaemonError
from prefetchd.cli.fill_progress import Filling, FillProgress
from prefetchd.cli.options import config_option, socket_option
from prefetchd.cli.reload import take_on
from prefetchd.cli.run import command as run
from prefetchd.daemon.config.config_file import read_config
from prefetchd.daemon.config.daemon_config import Config
from prefetchd.status.snapshot import read_report
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths

LOOK_AGAIN_S = 0.1
SERVES_WITHIN_S = 10.0


@click.command("warm")
@socket_option
@config_option(required=True)
@click.option("--timeout", type=click.FloatRange(0), metavar="SECONDS", help="Give up after so long. Default: never.")
@click.pass_context
def command(ctx: click.Context, socket: str | None, config: str, timeout: float | None) -> None:
    """Return once each declared stream has as many batches ready as its low watermark, or as its buffer holds.

    Starts a daemon with this configuration if none runs. One that runs without a configuration takes it on, and one
    that has this file reads it again; one that has another file is left alone. Shows how far it is: a bar on a
    terminal, else a line now and then.

    Exit code: 0 filled, 1 they will never be, 3 --timeout has come first.
    """
    began_s = time.monotonic()
    declared = read_config(Path(config))
    paths = runtime_paths(socket)
    if _is_served(paths):
        _have_it_taken(paths, config)
    else:
        # The whole path: the daemon lives in another directory, and reads the file again when it is asked to.
        ctx.invoke(run, socket=socket, config=os.path.abspath(config), detach=True, name_waits_after=60.0)
    with FillProgress() as progress:
        while (cold := _cold(paths, declared)) is not None:
            if timeout is not None and time.monotonic() >= began_s + timeout:
                click.echo(f"not warm within {timeout:g} s: {one_line(str(cold))}", err=True)
                ctx.exit(3)
            progress.show(cold)
            time.sleep(LOOK_AGAIN_S)


def _is_served(paths: RuntimePaths) -> bool:
    try:
        return read_report(paths).state in ("running", "hanging")
    except ProtocolError:
        return True


def _have_it_taken(paths: RuntimePaths, config: str) -> None:
    """Has the daemon take the configuration on. Raises ClickException when it has another one, which is somebody else's
    (decision 0105), or does not serve within SERVES_WITHIN_S: it may only be starting."""
    until_s = time.monotonic() + SERVES_WITHIN_S
    while True:
        try:
            take_on(paths, config, replace=False)
        except NoDaemonError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(LOOK_AGAIN_S)
        else:
            return


def _cold(paths: RuntimePaths, declared: Config) -> Filling | None:
    """Describes what is still to be filled; None when nothing is. Raises ClickException when it never will be."""
    first = declared.streams[0].name if declared.streams else ""
    try:
        report = read_report(paths)
    except ProtocolError:
        return Filling(first, 0, 0, "the daemon is starting")
    if report.state in ("absent", "dead") or report.snapshot is None:
        raise click.ClickException(f"no daemon runs on {paths.socket}; see {paths.log}")
    known = {each["name"]: each for each in report.snapshot.get("declared", [])}
    streams = {each["name"]: each for each in report.snapshot["streams"]}
    for number, stream in enumerate(declared.streams, 1):
        if stream.name not in known:
            raise click.ClickException(
                f"the daemon on {paths.socket} does not declare {stream.name!r}: another has taken its place, or its "
                f"configuration has changed meanwhile. It has {report.snapshot['daemon'].get('config') or 'none'} now"
            )
        found = streams.get(stream.name)
        failure = known[stream.name]["failure"] or (found or {}).get("failure")
        if failure:
            raise click.ClickException(f"stream {stream.name!r} has failed: {failure}")
        if found is not None and found["ring"] is None and found["failed_batches"]:
            # Nothing more is made before a trainer has taken the error: it would be waited for for ever.
            raise click.ClickException(
                f"stream {stream.name!r}: its first batch has failed. The daemon's log says why, and a trainer is "
                f"told: PrefetchLoader.attach({stream.name!r}) and one next()"
            )
        if found is None or not found["warm"]:
            ready, wanted = (found["batches_ready"], found.get("batches_wanted", 0)) if found is not None else (0, 0)
            return Filling(stream.name, ready, wanted, _doing(known[stream.name], found), number, len(declared.streams))
    return None


def _doing(declared: dict[str, Any], found: dict[str, Any] | None) -> str:
    """Says what is done before the first batch is there; empty when batches are made."""
    if not declared["settled"]:
        return "its dataset is looked at"
    if found is None or found["ring"] is None:
        return "its first batch is made"
    return "it is paused" if found["paused"] else ""
