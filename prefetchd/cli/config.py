"""Implements `prefetchd config`: says what a configuration file declares, and whether it can be served here, before a
daemon has to read it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import click

from prefetchd.cli.config_check import NOTE, PROBLEM, UNKNOWN, ConfigCheck, Ring
from prefetchd.cli.dataset_look import look_at
from prefetchd.daemon.config.config_file import read_config
from prefetchd.daemon.config.daemon_config import StreamConfig
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.printable import one_line


@click.group("config")
def command() -> None:
    """Check a configuration file."""


@command.command("check")
@click.argument("file")
@click.option("--no-import", is_flag=True, help="Run none of your code: leave out what only a dataset can tell.")
@click.option(
    "--timeout",
    type=click.FloatRange(0, min_open=True),
    default=120,
    show_default=True,
    metavar="SECONDS",
    help="How long each dataset and its first batch may take.",
)
@click.pass_context
def check(ctx: click.Context, file: str, no_import: bool, timeout: float) -> None:
    """Say what is wrong with FILE, line by line, or what it declares.

    First what is written there; then whether it can be served on this machine: interpreters, store directories and
    their room. Then each dataset is made, with its first batch, in a process of its own as the daemon starts it, and
    buffer and watermarks are held against the size of that batch. No daemon is started or asked.

    Run it where the daemon will run: as that user, in that container, with its variables.

    Exit code: 0 FILE is good, 1 it is not, 3 a dataset was not made within --timeout, and nothing else is wrong.
    """
    config = read_config(Path(file))
    checking = ConfigCheck(Path(file), config, timeout, None if no_import else look_at)
    seen: Counter[str] = Counter()
    for stream in config.streams:
        for remark in checking.remarks(stream):
            seen[remark.kind] += 1
            click.echo(one_line(f"note: {remark.text}" if remark.kind == NOTE else remark.text), err=True)
            for line in remark.details:
                click.echo(one_line(f"    {line}"), err=True)
        # The ring is known when remarks() has yielded the last one.
        click.echo(one_line(f"{stream.name}: {_describe(stream)}{_describe_ring(checking.ring)}"))
    counted = f"{len(config.streams)} stream{'s' * (len(config.streams) != 1)}"
    if seen[PROBLEM]:
        problems = f"{seen[PROBLEM]} problem{'s' * (seen[PROBLEM] != 1)}"
        raise click.ClickException(f"{file}: {problems}; it declares {counted}")
    if seen[UNKNOWN]:
        click.echo(one_line(f"{file}: {seen[UNKNOWN]} of {counted} not known in time"), err=True)
        ctx.exit(3)
    unlooked = "; datasets were not looked at" * bool(no_import and config.streams)
    click.echo(one_line(f"{file}: good; it declares {counted}{unlooked}"))


def _describe_ring(ring: Ring | None) -> str:
    return f"; room for {ring.slots} batches of {format_bytes(ring.batch_bytes)}" if ring is not None else ""


def _describe(stream: StreamConfig) -> str:
    size = format_bytes(stream.buffer_bytes) if stream.buffer_bytes else f"{stream.buffer_batches} batches"
    buffer = size if stream.buffer_bytes or stream.buffer_batches else "the default buffer"
    marks = f", filled from {stream.low_watermark} to {stream.high_watermark} batches" if stream.high_watermark else ""
    store = f"{stream.store} {stream.directory}" if stream.directory else stream.store
    progress = f"the file {stream.progress_file}" if stream.progress_file else "the socket"
    return f"{stream.dataset}, {buffer} in {store}{marks}, progress from {progress}"
