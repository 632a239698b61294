"""docs/status.md names each limit that a verdict may find."""

from __future__ import annotations

import ast
import inspect
import re

from prefetchd.cli import verdict
from tests.unit.docs.draw import DOCS

TEXT = (DOCS / "status.md").read_text("utf-8")


def limits() -> set[str]:
    """The texts that stand where the code decides on a limit."""
    found = {"none"}
    deciding = inspect.getsource(verdict._limit) + inspect.getsource(verdict._no_worker_idle)
    for node in ast.walk(ast.parse(deciding)):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            found |= _texts(node.value.elts[0])
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == "limit":
                    found |= _texts(node.value)
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    names = [getattr(each, "id", "") for each in target.elts]
                    if "limit" in names:
                        found |= _texts(node.value.elts[names.index("limit")])
    return found


def _texts(node: ast.expr) -> set[str]:
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def test_the_limits_are_found():
    assert {"none", "trainer", "dataset", "cpu"} < limits()


def test_each_limit_has_its_line_in_the_table_and_its_name_in_the_key():
    table = TEXT.split("\n## The verdict\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| ([a-z ]+) \| ", table, re.M)) == limits()
    (key,) = re.findall(r"^\| `verdict.limit` .*$", TEXT, re.M)
    assert set(re.findall(r'"([a-z ]+)"', key)) == limits()
    assert set(re.findall(r'"([a-z ]+)"', " ".join((verdict.Verdict.__doc__ or "").split()))) == limits()
