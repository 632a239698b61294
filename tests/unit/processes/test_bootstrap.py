"""Interpreters are started with a line of code or the name of a module, which no import contract sees: what it imports
is there, and here stands who starts what of the client's."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
from pathlib import Path

import pytest

import prefetchd
from prefetchd.cli import dataset_look
from prefetchd.daemon.declared import dataset_probe
from prefetchd.processes import bootstrap

LINES = {
    bootstrap.BOOTSTRAP: "prefetchd.workers.zygote",
    dataset_probe.BOOTSTRAP: "prefetchd_client.declared",
    dataset_look.BOOTSTRAP: "prefetchd_client.declared_look",
}
STARTED = {
    ("daemon/declared/dataset_probe.py", "prefetchd_client.declared"),
    ("cli/dataset_look.py", "prefetchd_client.declared_look"),
    ("cli/cache.py", "prefetchd_client.sample_cache"),
    ("cli/doctor.py", "prefetchd_client.script_check"),
}
"""By whom, which of the client's modules. All others of `prefetchd` know nothing of the client."""


def imported(line: str) -> dict[str, str]:
    """By name, the module that it comes from."""
    found = (each for each in ast.walk(ast.parse(line)) if isinstance(each, ast.ImportFrom))
    return {alias.name: each.module for each in found for alias in each.names}


@pytest.mark.parametrize("line", LINES)
def test_all_that_it_imports_is_there_and_the_last_is_the_main_function(line):
    names = imported(line)
    assert names["main"] == LINES[line]
    for name, module in names.items():
        assert inspect.isfunction(getattr(importlib.import_module(module), name)), (module, name)
    assert line.rstrip(")").endswith(":]"), "it is called with the rest of the arguments"


def test_who_starts_a_module_of_the_client_is_known_and_the_module_is_there():
    root = Path(prefetchd.__file__).parent
    found = set()
    for path in root.rglob("*.py"):
        tree = ast.parse(path.read_text())
        docstrings = {id(each.value) for each in ast.walk(tree) if isinstance(each, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                for module in re.findall(r"prefetchd_client(?:\.[a-z_]+)+", node.value):
                    found.add((str(path.relative_to(root)), module))
    assert found == STARTED
    for _, module in STARTED:
        spec = importlib.util.find_spec(module)
        assert spec is not None, module
