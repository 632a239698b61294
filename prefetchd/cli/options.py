"""Options that several verbs share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from prefetchd.wire.byte_sizes import parse_bytes
from prefetchd.wire.errors import CallerError
from prefetchd.wire.runtime_paths import SOCKET_VARIABLE, runtime_paths


class ByteSize(click.ParamType):
    """A size such as 8GiB, as bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        try:
            return parse_bytes(value, "size")
        except CallerError as error:
            self.fail(str(error), param, ctx)


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
