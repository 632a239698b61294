"""docs/compatibility.md has the cases that there are: else run `python -m tests.compatibility.table`."""

from __future__ import annotations

from tests.compatibility import table
from tests.compatibility.registry import ALL_CASES


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_the_table_is_of_these_cases():
    assert rows(table.FILE.read_text("utf-8")) == rows(table.text()), "run `python -m tests.compatibility.table`"


def test_nearly_all_cases_are_equal():
    assert sum(not case.reason for case in ALL_CASES) >= 0.95 * len(ALL_CASES)


def test_reasons_are_whole_sentences_for_the_table():
    for case in ALL_CASES:
        assert "|" not in case.reason
        assert not case.reason.endswith(".")
