"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from prefetchd.wire.runtime_paths import SOCKET_VARIABLE

socket_option: Callable[[Any], Any] = click.option(
    "--socket",
    metavar="PATH",
    envvar=SOCKET_VARIABLE,
    help=f"The daemon's socket. Default: ${SOCKET_VARIABLE}, else the user's own daemon.",
)
