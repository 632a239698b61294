"""Implements `prefetchd report`: the last hour in one file, to attach to a ticket."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import platform
import time
from pathlib import Path
from typing import Any

import click

from prefetchd import __version__
from prefetchd.cli.doctor import findings
from prefetchd.cli.options import socket_option
from prefetchd.dashboard.comparison import comparison
from prefetchd.dashboard.page import frozen_page
from prefetchd.dashboard.past import history_path, read_past
from prefetchd.dashboard.report import report, report_page, shortened
from prefetchd.status.snapshot import read_report
from prefetchd.status.status_object import status_object
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths

PACKAGES = ("torch", "torchvision", "numpy", "lightning", "accelerate", "transformers")
"""Packages whose versions a report names where they are installed."""


@click.command("report")
@socket_option
@click.argument("stream", required=False, default="")
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Where to write it. Default: report.html, or report.json with --json.",
)
@click.option("--json", "as_json", is_flag=True, help="Write the data alone, for --compare.")
@click.option("--short-paths", is_flag=True, help="Cut each path to its last part.")
@click.option(
    "--history",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The file that `[daemon] history` names. Default: what the daemon's status names.",
)
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="A.json B.json",
    help="Show two reports side by side instead.",
)
def command(
    socket: str | None,
    stream: str,
    output: Path | None,
    as_json: bool,
    short_paths: bool,
    history: Path | None,
    compare: tuple[Path, Path] | None,
) -> None:
    """Write the last hour of the daemon's streams, or of STREAM, into one file that any browser shows.

    It has the verdict over time, slowest samples, tuner decisions, settings, versions and what the doctor found; no
    environment variables and no secrets of the configuration. It works while the daemon runs, hangs or is dead, and of
    a run that has ended as long as its history is kept: as the daemon runs, or for good with `[daemon] history`.

    Exit code: 0 written; 1 no daemon and no history, no such stream, a file that is no report, or the file cannot be
    written.
    """
    if compare and (stream or history):
        raise click.UsageError("--compare takes two reports, and no STREAM or --history")
    target = output or Path("report.json" if as_json else "report.html")
    found = _compared(compare) if compare else _report(runtime_paths(socket), stream, history)
    if short_paths:
        found = shortened(found)
    if as_json:
        text = json.dumps(found, separators=(",", ":")) + "\n"
    else:
        text = frozen_page(found, "prefetchd: two runs") if compare else report_page(found, "prefetchd report")
    try:
        target.write_text(text, "utf-8")
    except OSError as error:
        raise click.ClickException(f"{target} cannot be written: {error.strerror}") from None
    click.echo(one_line(f"{target}: {found['headline']['text']}"))


def _report(paths: RuntimePaths, stream: str, history: Path | None) -> dict[str, Any]:
    status = status_object(read_report(paths))
    # A history that was kept for good is asked for by name, whenever it is of.
    points, ended = read_past(history, 0.0) if history else read_past(history_path(status, paths))
    if "daemon" not in status and not ended and not points:
        raise click.ClickException(f"no daemon on {paths.socket}, and no history of one; --history names a kept one")
    made = findings(paths, None, only=True, fix=False, with_torch=False)
    about = {"versions": _versions(), "findings": [dataclasses.asdict(each) for each in made]}
    try:
        return report(
            status, points, ended, stream=stream, socket=str(paths.socket), made_unix_s=time.time(), about=about
        )
    except KeyError:
        known = [each["name"] for each in status.get("streams", [])] + list(ended)
        raise click.ClickException(
            f"no stream {stream!r}; there are: {', '.join(known) if known else 'none'}"
        ) from None


def _compared(files: tuple[Path, Path]) -> dict[str, Any]:
    reports = []
    for file in files:
        try:
            reports.append(json.loads(file.read_text("utf-8")))
        except (OSError, ValueError) as error:
            raise click.ClickException(f"{file} is no report: {error}") from None
    return comparison(reports[0], reports[1], (files[0].name, files[1].name))


def _versions() -> dict[str, str]:
    """Return the versions of what has a part in loading. Nothing is imported for them."""
    found = {"prefetchd": __version__, "Python": platform.python_version(), "kernel": platform.release()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
