"""Shows the live screen of `prefetchd status --watch`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from prefetchd.cli.colours import coloured, wants_colours
from prefetchd.cli.render import WIDTH, render
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import RuntimePaths


def watch(look: Callable[[], dict[str, Any]], paths: RuntimePaths, interval_s: float) -> None:
    """Shows what look() returns, every `interval_s`, until it is interrupted. Where the output is no terminal, prints
    one report after another."""
    console = Console(no_color=not wants_colours(sys.stdout), highlight=False)
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal:
            _screen(console, look, paths, interval_s)
        while True:
            print("\n".join(_lines(look, paths, WIDTH)), end="\n\n", flush=True)
            time.sleep(interval_s)


def _screen(console: Console, look: Callable[[], dict[str, Any]], paths: RuntimePaths, interval_s: float) -> None:
    # Drawn when there is news and not oftener: over ssh every drawing is sent.
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="ellipsis") as live:
        while True:
            text = "\n".join(_lines(look, paths, console.width))
            live.update(Text.from_ansi(coloured(text, sys.stdout)), refresh=True)
            time.sleep(interval_s)


def _lines(look: Callable[[], dict[str, Any]], paths: RuntimePaths, width: int) -> list[str]:
    try:
        return render(look(), paths.socket, width, history=True)
    except ProtocolError as error:
        return [one_line(str(error))]
