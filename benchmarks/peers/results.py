"""This module keeps what was measured, a line of JSON for each run, and takes medians and ranges of it.

Runs of several invocations add up: a work may be measured today, and another one tomorrow. Each line has the machine.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Run:
    """One run of one contestant in one work; `reason` instead of measures where it failed."""

    work: str
    contestant: str
    round: int
    day: str
    machine: str
    measures: dict[str, float] = dataclasses.field(default_factory=dict)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A median of several rounds, and from where to where they reach."""

    median: float
    lowest: float
    highest: float
    rounds: int

    def text(self, digits: int) -> str:
        """Returns it as the tables have it; the range where rounds differ as shown."""
        low, high = f"{self.lowest:,.{digits}f}", f"{self.highest:,.{digits}f}"
        median = f"{self.median:,.{digits}f}"
        return median if low == high else f"{median} ({low} to {high})"


def figure(values: Sequence[float]) -> Figure:
    """Raises ValueError for no values."""
    if not values:
        raise ValueError("a figure of no rounds")
    return Figure(statistics.median(values), min(values), max(values), len(values))


def add(path: Path, run: Run) -> None:
    """Appends the run to its work's file."""
    path.mkdir(parents=True, exist_ok=True)
    with open(path / f"{run.work}.jsonl", "a") as file:
        file.write(json.dumps(dataclasses.asdict(run)) + "\n")


def read(path: Path) -> list[Run]:
    """Returns all runs that are kept there."""
    lines = [line for file in sorted(path.glob("*.jsonl")) for line in file.read_text().splitlines()]
    return [Run(**json.loads(line)) for line in lines]


def next_round(runs: Iterable[Run], work: str) -> int:
    """Returns the number of the round that would come next in this work, from 1 on."""
    return max((run.round for run in runs if run.work == work), default=0) + 1


def figures(runs: Iterable[Run], work: str, measure: str) -> dict[str, Figure]:
    """Returns each contestant's figure; those that never succeeded are left out."""
    values: dict[str, list[float]] = {}
    for run in runs:
        if run.work == work and measure in run.measures:
            values.setdefault(run.contestant, []).append(run.measures[measure])
    return {contestant: figure(found) for contestant, found in values.items()}


def reasons(runs: Iterable[Run], work: str) -> dict[str, str]:
    """Returns why those failed that never succeeded in this work."""
    mine = [run for run in runs if run.work == work]
    succeeded = {run.contestant for run in mine if not run.reason}
    return {run.contestant: run.reason for run in mine if run.contestant not in succeeded}
