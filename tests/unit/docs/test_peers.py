"""docs/peers.md has the tables that benchmarks.peers makes: a row for each contestant, a part for each."""

from __future__ import annotations

import re

import pytest

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.report import PAGE, measured_part
from benchmarks.peers.works import NAMES, work_module

TEXT = PAGE.read_text("utf-8")
TITLES = [about.title for about in CONTESTANTS.values()]
WORKS = [work_module(name).WORK for name in NAMES]


def tables() -> list[list[list[str]]]:
    """The cells of each table of the measured part."""
    found = re.findall(r"(?:^\|.*\|\n)+", measured_part(TEXT) + "\n", re.M)
    return [[line.strip("|").split("|") for line in table.splitlines()] for table in found]


def test_each_table_has_the_contestants_of_the_code_in_its_order():
    assert len(tables()) == 1 + len(WORKS)
    for table in tables():
        assert [cells[0].strip() for cells in table[2:]] == TITLES


def test_the_first_table_has_all_works():
    assert [cell.strip() for cell in tables()[0][0][1:]] == [
        f"{work.title}: {work.columns[0].heading}" for work in WORKS
    ]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.title)
def test_a_work_has_its_columns(work):
    part = measured_part(TEXT).split(f"### {work.title[0].upper()}{work.title[1:]}\n")[1]
    assert work.what in part
    table = tables()[1 + WORKS.index(work)]
    assert [cell.strip() for cell in table[0][1:]] == [column.heading for column in work.columns]


def test_whoever_is_not_measured_in_a_work_has_no_figure_there():
    for table, name in zip(tables()[1:], NAMES):
        for cells, about in zip(table[2:], CONTESTANTS.values()):
            if name in about.cannot:
                assert {cell.strip() for cell in cells[1:]} == {"-"}, (about.title, name)


@pytest.mark.parametrize("title", [title for title in TITLES if title != "prefetchd"])
def test_each_contestant_has_a_part_that_says_what_it_does_better_and_what_it_lacks(title):
    part = TEXT.split(f"\n### {title}\n")[1].partition("\n### ")[0]
    assert "Better: " in part
    assert "Lacks: " in part
