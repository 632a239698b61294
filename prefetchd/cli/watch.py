"""Shows the live screen of `prefetchd status --watch`. Its last line has the keys; q ends it, as Ctrl-C does."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from prefetchd.cli.colours import coloured, wants_colours
from prefetchd.cli.render import WIDTH, render
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.printable import one_line
from prefetchd.wire.runtime_paths import RuntimePaths

KEYS = "q quits"


def watch(look: Callable[[], dict[str, Any]], paths: RuntimePaths, interval_s: float) -> None:
    """Shows what look() returns, every `interval_s`, until it is interrupted. Where the output is no terminal, prints
    one report after another."""
    console = Console(no_color=not wants_colours(sys.stdout), highlight=False)
    with contextlib.suppress(KeyboardInterrupt):
        if console.is_terminal:
            _screen(console, look, paths, interval_s)
            return
        while True:
            print("\n".join(_lines(look, paths, WIDTH)), end="\n\n", flush=True)
            time.sleep(interval_s)


def _screen(console: Console, look: Callable[[], dict[str, Any]], paths: RuntimePaths, interval_s: float) -> None:
    # Drawn when there is news and not oftener: over ssh every drawing is sent.
    with (
        _keys() as keys,
        Live(console=console, screen=True, auto_refresh=False, vertical_overflow="ellipsis") as live,
    ):
        while True:
            height = console.height - (keys is not None)
            lines = _lines(look, paths, console.width, height)
            if keys is not None:
                lines += [""] * (height - len(lines)) + [KEYS]
            live.update(Text.from_ansi(coloured("\n".join(lines), sys.stdout)), refresh=True)
            if keys is None:
                time.sleep(interval_s)
            elif _is_ended(keys, interval_s):
                return


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Yields the descriptor from which keys come one by one; None where the input is no terminal."""
    if not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _is_ended(fd: int, within_s: float) -> bool:
    """Returns True when q is typed, or the terminal is gone, within so many seconds."""
    until_s = time.monotonic() + within_s
    while select.select([fd], [], [], max(0.0, until_s - time.monotonic()))[0]:
        if os.read(fd, 1) in (b"q", b"Q", b""):
            return True
    return False


def _lines(look: Callable[[], dict[str, Any]], paths: RuntimePaths, width: int, height: int | None = None) -> list[str]:
    try:
        return render(look(), paths.socket, width, history=True, height=height)
    except ProtocolError as error:
        return [one_line(str(error))]
