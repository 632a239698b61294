"""Defines options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from prefetchd.wire.byte_sizes import parse_bytes
from prefetchd.wire.errors import CallerError
from prefetchd.wire.runtime_paths import CONFIG_VARIABLE, SOCKET_VARIABLE, runtime_paths


def as_bytes(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Parses an option's size such as 8GiB, as the option's callback. Returns bytes."""
    try:
        return parse_bytes(value, param.opts[0]) if value is not None else None
    except CallerError as error:
        raise click.BadParameter(str(error), ctx, param) from None


def _checked(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    try:
        runtime_paths(value)
    except CallerError as error:
        raise click.BadParameter(str(error), ctx, param) from None
    return value


socket_option: Callable[[Any], Any] = click.option(
    "--socket",
    metavar="PATH",
    callback=_checked,
    envvar=SOCKET_VARIABLE,
    help=f"The daemon's socket. Default: ${SOCKET_VARIABLE}, else the user's own daemon.",
)


def config_option(*, required: bool = False) -> Callable[[Any], Any]:
    return click.option(
        "--config",
        metavar="FILE",
        required=required,
        envvar=CONFIG_VARIABLE,
        help="Declares streams and settings (docs/configuration.md). Default: $PREFETCHD_CONFIG.",
    )
