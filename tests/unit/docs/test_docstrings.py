"""A docstring begins with a sentence of its own: who reads it has not read the line before."""

from __future__ import annotations

import ast
import re

from tests.unit.docs.draw import ROOT

LARGEST_SHARE = 0.02
MIDDLE = re.compile(
    r"(After|Also|And|As|At|Because|Before|Between|Both|But|By|For|From|How|If|In|It|Its|Neither|Not|Of|On|Or|So|Such"
    r"|Than|That|Their|Then|They|Those|To|Until|What|When|Where|Whether|Which|Who|Whom|Whose|Why|With|Without)\b"
)
STOP = re.compile(r"[.:!?][)\"'`]*(\s|$)")


def docstrings() -> dict[str, str]:
    """File, line and name to the docstring's first paragraph, as one line."""
    found = {}
    for top in ("prefetchd", "client"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    text = ast.get_docstring(node)
                    if text:
                        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '')}"
                        found[where] = " ".join(text.split("\n\n")[0].split())
    return found


def test_few_docstrings_begin_in_the_middle_of_a_sentence():
    found = docstrings()
    amid = {where: text for where, text in found.items() if MIDDLE.match(text)}
    assert len(amid) <= LARGEST_SHARE * len(found), amid


def test_every_docstring_s_first_sentence_ends():
    assert {where: text for where, text in docstrings().items() if not STOP.search(text)} == {}
