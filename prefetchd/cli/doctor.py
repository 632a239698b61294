"""Implements `prefetchd doctor`: shows what on this machine would be in the way, and how to mend it."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from prefetchd.cli.checks import cluster, leftovers, login, memory, processes, versions
from prefetchd.cli.checks.finding import ADVICE, FAILED, OK, Finding
from prefetchd.cli.colours import wants_colours
from prefetchd.cli.options import config_option, socket_option
from prefetchd.daemon.config.config_file import read_config
from prefetchd.daemon.config.daemon_config import NO_CONFIG, ConfigError
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import RAY_VARIABLE, RuntimePaths, runtime_paths

DOCTOR_VERSION = 1
SOMETHING_FAILED = 3
MARKS = {OK: ("ok    ", "green"), ADVICE: ("advice", "yellow"), FAILED: ("FAILED", "red")}


@click.command("doctor")
@socket_option
@config_option()
@click.option("--fix", is_flag=True, help="Remove segments and sockets that nobody uses any more.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (docs/status.md).")
@click.option(
    "--script",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False),
    help="Run this training script instead, and each of its loaders both ways. Its arguments go behind `--`.",
)
@click.option(
    "--batches", type=click.IntRange(2), default=16, show_default=True, help="With --script: an epoch's most."
)
@click.option("--seconds", type=float, default=120, show_default=True, help="With --script: then it is ended.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    ctx: click.Context,
    socket: str | None,
    config: str | None,
    fix: bool,
    as_json: bool,
    script: str | None,
    batches: int,
    seconds: float,
    arguments: tuple[str, ...],
) -> None:
    """Check this machine and this user's leftovers: what was found, why it matters, and the exact fix.

    Looks at shared memory, cgroups, locked memory, RAM disks, RemoveIPC, descriptors, CPUs, niceness, this machine's
    node of a Ray cluster, the daemon's version, torch and the GPU, and at segments and sockets that nobody uses. Run it
    where the daemon and trainers run: in their container, in their batch job. With --socket given, only the leftovers
    of that socket's daemons are looked for, else those of all of yours.

    With --script FILE it runs that script as `python FILE` does, but each epoch has a few batches only. What its
    DataLoaders give is compared with what a PrefetchLoader in their place gives, value by value, and timed. The script
    trains, and writes what it writes.

    Exit code: 0 nothing failed (advice may have been given), 1 the script failed or has no loader, 3 something failed,
    or batches differ.
    """
    if script is not None:
        # Verbs do not import the client, nor torch.
        check = [sys.executable, "-m", "prefetchd_client.script_check", f"--batches={batches}", f"--seconds={seconds}"]
        sys.stdout.flush()
        os.execv(sys.executable, [*check, script, *arguments])
    if arguments:
        raise click.UsageError(f"unexpected arguments: {' '.join(arguments)}; a script's need --script FILE")
    found = []
    only = ctx.get_parameter_source("socket") is click.core.ParameterSource.COMMANDLINE
    for finding in findings(runtime_paths(socket), config, only=only, fix=fix):
        found.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        told = [dataclasses.asdict(each) for each in found]
        click.echo(json.dumps({"doctor_version": DOCTOR_VERSION, "checks": told}, indent=2))
    sys.exit(SOMETHING_FAILED if any(each.state == FAILED for each in found) else 0)


def findings(
    paths: RuntimePaths, config: str | None, *, only: bool, fix: bool, with_torch: bool = True
) -> Iterator[Finding]:
    """Yields all findings, as they come; `config` is a file, which may have put rings on RAM disks. With `only`,
    leftovers of other sockets' daemons are not looked for. Without torch, which takes seconds to import, that and the
    GPU are left out."""
    declared = NO_CONFIG
    if config is not None:
        check, why = "configuration", "no daemon starts with one that is wrong"
        try:
            declared = read_config(Path(config))
            yield Finding(check, OK, f"{config} is good", why)
        except ConfigError as error:
            yield Finding(check, FAILED, "; ".join(str(error).splitlines()), why, "mend it, or unset PREFETCHD_CONFIG")
    yield from memory.findings(declared.streams)
    yield from login.findings()
    yield from processes.findings()
    yield from cluster.findings(os.environ.get(RAY_VARIABLE) or declared.daemon.ray or "")
    yield from leftovers.findings(paths, declared.ram_disks, only=only, fix=fix)
    yield versions.daemon_version(paths)
    if with_torch:
        yield from versions.torch_and_gpu()


def _show(finding: Finding) -> None:
    text, colour = MARKS.get(finding.state, ("?     ", "yellow"))
    mark = click.style(text, fg=colour) if wants_colours(sys.stdout) else text
    click.echo(f"{mark}  {finding.check}: {one_line(finding.found)}")
    if finding.fix:
        click.echo(f"        why: {one_line(finding.why)}")
        click.echo(f"        fix: {one_line(finding.fix)}")
