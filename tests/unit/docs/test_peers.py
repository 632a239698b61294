"""docs/peers.md has the tables that benchmarks.peers makes: a row for each contestant, a part for each."""

from __future__ import annotations

import re

import pytest

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.report import NOT_YET, PAGE, measured_part
from benchmarks.peers.works import NAMES, work_module
from benchmarks.peers.works.work import Work

TEXT = PAGE.read_text("utf-8")
TITLES = [about.title for about in CONTESTANTS.values()]
WORKS = [work_module(name).WORK for name in NAMES]


def part_of(work: Work) -> str:
    """What the measured part has of a work."""
    return (measured_part(TEXT) + "\n").split(f"### {work.title[0].upper()}{work.title[1:]}\n")[1].split("\n### ")[0]


def cells_of(text: str) -> list[list[str]]:
    """The cells of the first table in it; none where there is no table."""
    table = re.search(r"(?:^\|.*\|\n)+", text, re.M)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[0].splitlines()] if table else []


def test_the_first_table_has_all_contestants_and_works_of_the_code():
    head, _, *rows = cells_of(measured_part(TEXT))
    assert head[1:] == [f"{work.title}: {work.columns[0].heading}" for work in WORKS]
    assert [cells[0] for cells in rows] == TITLES


@pytest.mark.parametrize("name", NAMES)
def test_a_work_that_was_measured_has_its_columns_and_all_contestants(name):
    work = work_module(name).WORK
    part = part_of(work)
    assert work.what in part
    if NOT_YET in part:
        assert cells_of(part) == []
        return
    head, _, *rows = cells_of(part)
    assert head[1:] == [column.heading for column in work.columns]
    assert [cells[0] for cells in rows] == TITLES
    for cells, about in zip(rows, CONTESTANTS.values()):
        if name in about.cannot:
            assert set(cells[1:]) == {"-"}, about.title


@pytest.mark.parametrize("title", [title for title in TITLES if title != "prefetchd"])
def test_each_contestant_has_a_part_that_says_what_it_does_better_and_what_it_lacks(title):
    part = TEXT.split(f"\n### {title}\n")[1].partition("\n### ")[0]
    assert "Better: " in part
    assert "Lacks: " in part
