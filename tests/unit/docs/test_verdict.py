"""docs/status.md names each limit that a verdict may find."""

from __future__ import annotations

import inspect
import re

from prefetchd.diagnosis import verdict
from tests.unit.docs.draw import DOCS

TEXT = (DOCS / "status.md").read_text("utf-8")


def test_no_limit_is_found_that_is_none():
    """The texts that stand first where the code returns what it has found."""
    source = inspect.getsource(verdict)
    found = set(re.findall(r'_Finding\(\s*"([a-z ]+)"', source)) | set(re.findall(r'return "([a-z ]+)", f', source))
    assert found | {"none"} == set(verdict.LIMITS)


def test_each_limit_has_its_line_in_the_table_and_its_name_in_the_key():
    table = TEXT.split("\n## The verdict\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| ([a-z ]+) \| ", table, re.M)) == set(verdict.LIMITS)
    (key,) = re.findall(r"^\| `verdict.limit` .*$", TEXT, re.M)
    assert set(re.findall(r'"([a-z ]+)"', key)) == set(verdict.LIMITS)
