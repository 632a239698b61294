"""Implements `prefetchd config`: says what a configuration file declares, before a daemon has to read it."""

from __future__ import annotations

from pathlib import Path

import click

from prefetchd.daemon.config.config_file import read_config
from prefetchd.daemon.config.daemon_config import StreamConfig
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.printable import one_line


@click.group("config")
def command() -> None:
    """Check a configuration file."""


@command.command("check")
@click.argument("file")
def check(file: str) -> None:
    """Say what is wrong with FILE, line by line, or what it declares.

    Nothing is started or imported: that a dataset can be made, `prefetchd warm` tells.

    Exit code: 0 FILE is good, 1 it is not.
    """
    config = read_config(Path(file))
    for stream in config.streams:
        click.echo(one_line(f"{stream.name}: {_told(stream)}"))
    counted = f"{len(config.streams)} stream{'s' * (len(config.streams) != 1)}"
    click.echo(one_line(f"{file}: good; it declares {counted}"))


def _told(stream: StreamConfig) -> str:
    size = format_bytes(stream.buffer_bytes) if stream.buffer_bytes else f"{stream.buffer_batches} batches"
    buffer = size if stream.buffer_bytes or stream.buffer_batches else "the default buffer"
    marks = f", filled from {stream.low_watermark} to {stream.high_watermark} batches" if stream.high_watermark else ""
    store = f"{stream.store} {stream.directory}" if stream.directory else stream.store
    progress = f"the file {stream.progress_file}" if stream.progress_file else "the socket"
    return f"{stream.dataset}, {buffer} in {store}{marks}, progress from {progress}"
