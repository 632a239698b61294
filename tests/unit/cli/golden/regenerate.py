"""Writes the golden screens anew."""

from __future__ import annotations

from pathlib import Path

from prefetchd.cli.render import render
from prefetchd.status.status_object import status_object
from tests.unit.cli.examples import every_state

WIDTHS = (80, 120)
SOCKET = Path("/run/d.sock")


def path(width: int) -> Path:
    return Path(__file__).with_name(f"status_{width}.txt")


def screen(width: int) -> str:
    return "\n".join(render(status_object(every_state()), SOCKET, width, history=True)) + "\n"


if __name__ == "__main__":
    for each in WIDTHS:
        path(each).write_text(screen(each), "utf-8")
