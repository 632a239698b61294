"""docs/environment.md has every variable that the code reads or sets, and no other."""

from __future__ import annotations

import re

import pytest

from prefetchd.processes.environment import DENIED, restrict
from tests.unit.docs.draw import DOCS, ROOT
from tests.unit.docs.variables_read import BY_OTHERS, FILES, variables

TEXT = (DOCS / "environment.md").read_text("utf-8")


def rows(heading: str = "") -> set[str]:
    part = TEXT.split(f"\n## {heading}\n")[1].split("\n## ")[0] if heading else TEXT
    return set(re.findall(r"^\| `(\w+)` \|", part, re.M))


def test_the_tables_have_every_variable_that_the_code_reads_or_sets():
    assert rows() == variables() | set(BY_OTHERS)


@pytest.mark.parametrize("call", BY_OTHERS.values())
def test_what_python_reads_for_us_it_is_asked_for(call):
    assert any(call in path.read_text("utf-8") for path in FILES)


def test_a_variable_is_in_one_table():
    names = re.findall(r"^\| `(\w+)` \|", TEXT, re.M)
    assert sorted(names) == sorted(set(names))


def test_what_workers_do_not_get_is_from_the_service_manager():
    assert {name.decode() for name in DENIED} == rows("From a service manager") - {"JOURNAL_STREAM"}


def test_what_is_changed_for_workers_is_told():
    changed: dict[bytes, bytes] = {}
    restrict(changed)
    told = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|$", TEXT.split("\n## What is changed for workers\n")[1], re.M))
    for name, value in changed.items():
        assert told[name.decode()].startswith(f"`{value.decode()}`" if value else "empty")


def test_other_documents_name_no_other_variable():
    """But for those of tests, which say for themselves what they are for."""
    pages = [*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "systemd" / "README.md"]
    named = {name for page in pages for name in re.findall(r"\bPREFETCHD_[A-Z_]*[A-Z]\b", page.read_text("utf-8"))}
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py"))
    assert {name for name in named - rows() if f'"{name}"' not in tests} == set()
