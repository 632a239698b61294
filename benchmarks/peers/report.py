"""This module makes the tables of docs/peers.md of what was measured, and puts them between their marks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.environments import ROOT
from benchmarks.peers.results import Figure, Run, figures, reasons
from benchmarks.peers.works import NAMES, work_module
from benchmarks.peers.works.work import Column, Work

PAGE = ROOT / "docs" / "peers.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOTHING = "-"


def tables(runs: Sequence[Run]) -> str:
    """Returns all that stands between the marks."""
    parts = [overview(runs)]
    notes: dict[str, None] = {}
    for name in NAMES:
        if any(run.work == name for run in runs):
            parts.append(table(runs, name))
            notes |= dict.fromkeys(failures(runs, name))
    return "\n\n".join([*parts, *notes, machine_lines(runs)])


def overview(runs: Sequence[Run]) -> str:
    """Returns the table of all works: each contestant's first measure, a median."""
    works = [work_module(name).WORK for name in NAMES]
    head = [f"{work.title}, {_unit(work.columns[0])}" for work in works]
    lines = [_row(["", *head]), _row(["---"] * (len(works) + 1))]
    for contestant, about in CONTESTANTS.items():
        cells = []
        for name, work in zip(NAMES, works):
            column = work.columns[0]
            found = figures(runs, name, column.measure).get(contestant)
            cells.append(NOTHING if found is None else f"{found.median:,.{column.digits}f}")
        lines.append(_row([about.title, *cells]))
    return "\n".join(lines)


def table(runs: Sequence[Run], name: str) -> str:
    """Returns one work's table: all measures, with ranges."""
    work: Work = work_module(name).WORK
    by_measure = {column.measure: figures(runs, name, column.measure) for column in work.columns}
    rounds = {figure.rounds for figure in by_measure[work.columns[0].measure].values()}
    told = f"{min(rounds)}" if len(rounds) == 1 else f"{min(rounds)} to {max(rounds)}" if rounds else "no"
    lines = [f"### {work.title[0].upper()}{work.title[1:]}", "", f"{work.what} {told} rounds.", ""]
    lines += [_row(["", *(column.heading for column in work.columns)]), _row(["---"] * (len(work.columns) + 1))]
    for contestant, about in CONTESTANTS.items():
        cells = [_cell(by_measure[column.measure].get(contestant), column) for column in work.columns]
        lines.append(_row([about.title, *cells]))
    return "\n".join(lines)


def failures(runs: Sequence[Run], name: str) -> list[str]:
    """Returns a line for each contestant that was run in this work and never succeeded."""
    title = work_module(name).WORK.title
    return [f"{CONTESTANTS[each].title}, {title}: {reason}" for each, reason in reasons(runs, name).items()]


def machine_lines(runs: Sequence[Run]) -> str:
    """Returns what all of it was measured on, when, and with which versions."""
    machines = sorted({re.sub(r"; load average .*", "", run.machine) for run in runs})
    days = sorted({run.day for run in runs})
    versions: dict[str, str] = {}
    for run in runs:
        versions |= {f"{CONTESTANTS[run.contestant].title}: {_versions(run)}": "" for _ in [0] if run.versions}
    when = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "no day"
    return f"Measured on {when}: {'; '.join(machines)}.\n\nVersions: {'; '.join(sorted(versions))}."


def _versions(run: Run) -> str:
    return ", ".join(f"{name} {version}" for name, version in run.versions.items())


def _unit(column: Column) -> str:
    return column.heading


def _cell(found: Figure | None, column: Column) -> str:
    return NOTHING if found is None else found.text(column.digits)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def with_tables(page: str, measured: str) -> str:
    """Returns the page with its measured part replaced. Raises ValueError where the marks are not there once each."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"the page needs {BEGIN} and {END}, once each")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{measured}\n\n{END}{rest.split(END)[1]}"


def measured_part(page: str) -> str:
    """Returns what stands between the marks."""
    return page.split(BEGIN)[1].split(END)[0].strip("\n")


def write(runs: Sequence[Run], page: Path = PAGE) -> None:
    page.write_text(with_tables(page.read_text("utf-8"), tables(runs)), "utf-8")
