"""Implements `prefetchd stop`: ends the daemon in order."""

from __future__ import annotations

import os
import time

import click

from prefetchd.cli.control_client import ControlClient, NoDaemonError
from prefetchd.cli.options import socket_option
from prefetchd.cli.patience import Patience
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.messages import Farewell, Stop
from prefetchd.wire.runtime_paths import runtime_paths

STOP_TIMEOUT_S = 30.0
LOOK_AGAIN_S = 0.2


@click.command("stop")
@socket_option
@click.option("--now", is_flag=True, help="Kill workers at once, whatever they are at.")
def command(socket: str | None, now: bool) -> None:
    """Stop the daemon and wait until it is gone. Trainers that use it start another one when they need it.

    Workers may finish what they are at, for two seconds; rings go with the daemon.

    Exit code: 0 gone, or there was none; 1 it does not answer or does not end.
    """
    paths = runtime_paths(socket)
    try:
        with ControlClient(paths) as client:
            client.ask(Stop(now), Farewell)
            client.wait_for_end()
    except NoDaemonError as none:
        click.echo(none.message)
        return
    # The lock is given up last, after the segments.
    lock = LockFile(paths.lock)
    began_s = time.monotonic()
    with Patience("waiting until the daemon has ended") as patience:
        while os.path.exists(paths.lock) and not lock.acquire(LOOK_AGAIN_S):
            if time.monotonic() - began_s > STOP_TIMEOUT_S:
                raise click.ClickException(f"the daemon has not ended after {STOP_TIMEOUT_S:.0f} s; see {paths.log}")
            patience.go_on()
    lock.release()
    click.echo("stopped")
