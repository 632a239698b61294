"""side_by_side renders what was measured as text. Pure: figures and width in, text out."""

from __future__ import annotations

import dataclasses
import io

from rich import box
from rich.console import Console
from rich.table import Table

from prefetchd_demo.own_daemon import RingFill
from prefetchd_demo.trainer_messages import Progress


@dataclasses.dataclass(frozen=True)
class Figures:
    """Holds what one loader was measured at. `restart_from_start_s` counts from the start of the new trainer's
    process."""

    images_per_s: float
    first_batch_s: float
    stalled_s: float
    restart_first_batch_s: float
    restart_from_start_s: float


@dataclasses.dataclass(frozen=True)
class Conditions:
    """Says what the figures hold for. `ring` is how full it was when the new trainer began."""

    images: int
    epochs: int
    batch_size: int
    workers: int
    ring: RingFill | None
    machine: str


def progress_text(progress: Progress, ring: RingFill | None) -> str:
    """Returns one line of the live progress; it leaves out a `ring` that is None."""
    parts = [
        f"loss {progress.loss:.2f}",
        f"accuracy {progress.accuracy * 100:3.0f} %",
        f"{progress.images_per_s:,.0f} img/s",
    ]
    if ring is not None:
        parts.append(f"ring {ring.ready}/{ring.slots}")
    return "  ".join([*parts, f"stalled {progress.stalled_s:.1f} s"])


def side_by_side(figures: dict[str, Figures], conditions: Conditions, width: int) -> str:
    """Returns the table, with a column for each of `figures`, and under it what it holds for; no line is longer than
    `width`."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    rows = {
        "img/s": [f"{each.images_per_s:,.0f}" for each in figures.values()],
        "first batch": [_seconds(each.first_batch_s) for each in figures.values()],
        "stalled": [_seconds(each.stalled_s) for each in figures.values()],
        "first batch after the restart": [_seconds(each.restart_first_batch_s) for each in figures.values()],
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
    epochs = "1 epoch" if conditions.epochs == 1 else f"{conditions.epochs} epochs"
    lines = [
        f"{conditions.images:,} images, {epochs}, batches of {conditions.batch_size}, "
        f"{conditions.workers} workers each.",
        "img/s and stalled (time in next()) count from the first batch on; first batch counts from the loader's "
        "construction.",
        f"Counted from the start of the restarted process, imports included, the first batch took {from_start}.",
    ]
    if conditions.ring is not None:
        lines.append(
            f"The new trainer found {conditions.ring.ready} batches ready in the ring of {conditions.ring.slots}."
        )
    return [*lines, f"Machine: {conditions.machine}."]


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
