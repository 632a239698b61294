"""This module makes the tables of docs/peers.md of what was measured, and puts them between their marks."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.environments import ROOT
from benchmarks.peers.results import Run, figures, reasons
from benchmarks.peers.works import NAMES, work_module
from benchmarks.peers.works.work import Work

PAGE = ROOT / "docs" / "peers.md"
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOTHING = "-"
NOT_YET = "Not measured yet."
COMMON = ("torch", "numpy")
"""Told once, and where a contestant has another version."""


def tables(runs: Sequence[Run]) -> str:
    """Returns all that stands between the marks."""
    works = [table(runs, name) for name in NAMES]
    lines = [line for name in NAMES for line in failures(runs, name)]
    return "\n\n".join([overview(runs), not_measured(), *lines, *works, machines(runs), versions(runs)])


def overview(runs: Sequence[Run]) -> str:
    """Returns the table of all works: the median of each contestant's first measure."""
    works: list[Work] = [work_module(name).WORK for name in NAMES]
    rows = [["", *(f"{work.title}: {work.columns[0].heading}" for work in works)]]
    found = [figures(runs, name, work.columns[0].measure) for name, work in zip(NAMES, works)]
    for contestant, about in CONTESTANTS.items():
        medians = [each[contestant].median if contestant in each else None for each in found]
        digits = [work.columns[0].digits for work in works]
        rows.append([about.title, *(NOTHING if m is None else f"{m:,.{d}f}" for m, d in zip(medians, digits))])
    return _table(rows)


def not_measured() -> str:
    """Returns why there are works that a contestant was not run in."""
    reasons_of = {f"{about.title}, {reason}" for about in CONTESTANTS.values() for reason in about.cannot.values()}
    return "Not measured: " + "; ".join(sorted(reasons_of)) + "."


def table(runs: Sequence[Run], name: str) -> str:
    """Returns one work's table: all measures, with ranges."""
    work: Work = work_module(name).WORK
    title = f"### {work.title[0].upper()}{work.title[1:]}"
    if not any(run.work == name for run in runs):
        return f"{title}\n\n{work.what} {NOT_YET}"
    by_measure = [figures(runs, name, column.measure) for column in work.columns]
    counts = sorted({figure.rounds for figure in by_measure[0].values()})
    rounds = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]]))) if counts else "no"
    rows = [["", *(column.heading for column in work.columns)]]
    for contestant, about in CONTESTANTS.items():
        cells = [
            found[contestant].text(column.digits) if contestant in found else NOTHING
            for found, column in zip(by_measure, work.columns)
        ]
        rows.append([about.title, *cells])
    return f"{title}\n\n{work.what} Rounds: {rounds}.\n\n{_table(rows)}"


def failures(runs: Sequence[Run], name: str) -> list[str]:
    """Returns a line for each contestant that was run in this work and never succeeded."""
    title = work_module(name).WORK.title
    return [f"{CONTESTANTS[each].title} failed in {title}: {reason}." for each, reason in reasons(runs, name).items()]


def machines(runs: Sequence[Run]) -> str:
    """Returns what all of it was measured on, and when."""
    found = sorted({re.sub(r"; load average .*", "", run.machine) for run in runs})
    days = sorted({run.day for run in runs})
    when = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "no day"
    return f"Measured on {when}: {'; '.join(found)}."


def versions(runs: Sequence[Run]) -> str:
    """Returns which versions each contestant had."""
    found = {run.contestant: run.versions for run in runs if run.versions}
    usual = {name: statistics.mode([each[name] for each in found.values()]) for name in COMMON if found}
    parts = []
    for contestant, about in CONTESTANTS.items():
        own = [
            f"{name} {version}"
            for name, version in found.get(contestant, {}).items()
            if usual.get(name) != version or (name in about.distributions and name not in usual)
        ]
        parts += [f"{about.title}: {', '.join(own)}"] if own else []
    return f"Versions: all with {', '.join(map(' '.join, usual.items()))}; {'; '.join(parts)}."


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


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
