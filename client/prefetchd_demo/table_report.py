"""side_by_side renders what was measured on the CPU as a table. Pure: figures and width in, text out."""

from __future__ import annotations

import dataclasses
import io

from rich import box
from rich.console import Console
from rich.table import Table

from prefetchd_demo.comparison import Measured
from prefetchd_demo.conditions import Conditions
from prefetchd_demo.durations import format_duration


@dataclasses.dataclass(frozen=True)
class Figures:
    """Holds what one loader was measured at. `restart_from_start_s` counts from the start of the new trainer's
    process."""

    images_per_s: float
    first_batch_s: float
    stalled_s: float
    restart_first_batch_s: float
    restart_from_start_s: float


def table_figures(measured: Measured) -> Figures:
    """Returns the table's figures of what was measured."""
    return Figures(
        images_per_s=measured.first.last.images_per_s,
        first_batch_s=measured.first.last.first_batch_s,
        stalled_s=measured.first.last.stalled_s,
        restart_first_batch_s=measured.second.last.first_batch_s,
        restart_from_start_s=measured.second.from_start_s,
    )


def side_by_side(figures: dict[str, Figures], conditions: Conditions, width: int) -> str:
    """Returns the table, with a column for each of `figures`, and under it what it holds for; no line is longer than
    `width`."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    rows = {
        "img/s": [f"{each.images_per_s:,.0f}" for each in figures.values()],
        "first batch": [format_duration(each.first_batch_s) for each in figures.values()],
        "stalled": [format_duration(each.stalled_s) for each in figures.values()],
        "first batch after the restart": [format_duration(each.restart_first_batch_s) for each in figures.values()],
    }
    for title, cells in rows.items():
        table.add_row(title, *cells)
    out = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False, legacy_windows=False)
    out.print(table)
    out.print()
    for line in _notes(figures, conditions):
        out.print(line, highlight=False, markup=False)
    text: str = out.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


def _notes(figures: dict[str, Figures], conditions: Conditions) -> list[str]:
    """Explains the words of the table, and where they were measured."""
    from_start = " and ".join(f"{each.restart_from_start_s:.1f} s" for each in figures.values())
    return [
        conditions.amounts() + ".",
        "img/s and stalled (time in next()) count from the first batch on; first batch counts from the loader's "
        "construction.",
        f"Counted from the start of the restarted process, imports included, the first batch took {from_start}.",
        *conditions.found(),
        f"Machine: {conditions.machine}.",
    ]
