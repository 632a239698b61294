"""prefetchd doctor: what on this machine would be in the way, and how to mend it."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator

import click

from prefetchd.cli.checks import leftovers, login, memory, processes, versions
from prefetchd.cli.checks.finding import ADVICE, FAILED, OK, Finding
from prefetchd.cli.colours import wants_colours
from prefetchd.cli.options import socket_option
from prefetchd.wire.runtime_paths import RuntimePaths, runtime_paths

DOCTOR_VERSION = 1
SOMETHING_FAILED = 3
MARKS = {OK: ("ok    ", "green"), ADVICE: ("advice", "yellow"), FAILED: ("FAILED", "red")}


@click.command("doctor")
@socket_option
@click.option("--fix", is_flag=True, help="Remove segments and sockets that nobody uses any more.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (docs/status.md).")
def command(socket: str | None, fix: bool, as_json: bool) -> None:
    """Check this machine and this user's leftovers: what was found, why it matters, and the exact fix.

    Looks at shared memory, cgroups, locked memory, RAM disks, RemoveIPC, descriptors, CPUs, niceness, the daemon's
    version, torch and the GPU, and at segments and sockets that nobody uses. Run it where the daemon and trainers run:
    in their container, in their batch job.

    Exit code: 0 nothing failed (advice may have been given), 3 something failed.
    """
    found = []
    for finding in findings(runtime_paths(socket), fix=fix):
        found.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        told = [dataclasses.asdict(each) for each in found]
        click.echo(json.dumps({"doctor_version": DOCTOR_VERSION, "checks": told}, indent=2))
    sys.exit(SOMETHING_FAILED if any(each.state == FAILED for each in found) else 0)


def findings(paths: RuntimePaths, *, fix: bool) -> Iterator[Finding]:
    """All of them, as they are found."""
    yield from memory.findings()
    yield from login.findings()
    yield from processes.findings()
    yield from leftovers.findings(paths, fix=fix)
    yield from versions.findings(paths)


def _show(finding: Finding) -> None:
    text, colour = MARKS.get(finding.state, ("?     ", "yellow"))
    mark = click.style(text, fg=colour) if wants_colours(sys.stdout) else text
    click.echo(f"{mark}  {finding.check}: {finding.found}")
    for name in ("why", "fix"):
        if getattr(finding, name):
            click.echo(f"        {name}: {getattr(finding, name)}")
