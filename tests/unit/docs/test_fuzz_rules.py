"""Each difference that the fuzzer accepts is named in docs/compatibility.md."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fuzz.oracle import RULES

ROOT = Path(__file__).parents[3]
ROW = re.compile(r"^\| `(\w+)` \| (.*) \|$", re.MULTILINE)


@pytest.mark.parametrize("page", ["tests/compatibility/programs.md", "docs/compatibility.md"])
def test_accepted_differences_are_documented(page):
    text = (ROOT / page).read_text("utf-8").partition("## Fuzzed programs")[2]
    assert {name: rule.replace("`", "") for name, rule in ROW.findall(text)} == RULES
