"""The demo's bars: live on a terminal, a line for what is done elsewhere."""

from __future__ import annotations

import io

from prefetchd_demo.live import Live
from rich.console import Console


def shown(**terminal) -> str:
    out = io.StringIO()
    with Live(Console(file=out, width=100, **terminal)) as live:
        live.heading("training")
        for done in (0, 30, 60):
            live.show("epoch 1", done, 60, f"loss {60 - done}")
        live.show("epoch 2", 10, 0, "loss 7")
    return out.getvalue()


def test_on_a_terminal_the_bars_move_and_the_cursor_comes_back():
    found = shown(force_terminal=True, color_system="standard", _environ={"TERM": "xterm"})
    assert found.startswith("training\n")
    assert "epoch 1" in found
    assert "loss 60" in found or "loss 0" in found
    assert "epoch 2" in found
    assert "━" in found, "a bar"
    assert found.rindex("\x1b[?25h") > found.rindex("\x1b[?25l"), "the cursor is shown again"


def test_elsewhere_a_line_is_written_for_what_is_done():
    assert shown(force_terminal=False) == "training\n  epoch 1  loss 0\n"
    assert shown(force_terminal=True, _environ={"TERM": "dumb"}) == "training\n  epoch 1  loss 0\n"
