"""Interpreters are started with a line of code, which no import contract sees: what it imports is there."""

from __future__ import annotations

import ast
import importlib
import inspect

import pytest

from prefetchd.daemon.declared import dataset_probe
from prefetchd.processes import bootstrap

LINES = {bootstrap.BOOTSTRAP: "prefetchd.workers.zygote", dataset_probe.BOOTSTRAP: "prefetchd_client.declared"}


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
