"""What code reaches for is found in its bytecode."""

from __future__ import annotations

import inspect

import pytest
from prefetchd_client.fingerprint.code_digest import imports_in, names_in

SOURCE = """
import os, json.decoder as decoder
from . import beside
from ..above import one, other as another
from anywhere import *

class Held:
    import in_a_class
    def method(self):
        from in_a_method import something
        return lambda: __import__("by hand")

for number in range(2):
    if number:
        import nested.name
"""
FOUND = {
    (0, "os", ()),
    (0, "json.decoder", ()),
    (1, "", ("beside",)),
    (2, "above", ("one", "other")),
    (0, "anywhere", ("*",)),
    (0, "in_a_class", ()),
    (0, "in_a_method", ("something",)),
    (0, "nested.name", ()),
}


def test_imports_are_found_however_deep():
    assert set(imports_in(compile(SOURCE, "a.py", "exec"))) == FOUND


@pytest.mark.parametrize("module", ["argparse", "torch.utils.data.dataloader", "prefetchd.wire.messages", "numpy"])
def test_the_quick_way_finds_the_same(module):
    code = compile(inspect.getsource(__import__(module, fromlist=["*"])), "a.py", "exec")
    assert imports_in(code) == names_in(code).imports
    assert imports_in(code)


def test_names_of_more_than_256_constants():
    code = compile(
        "\n".join(f"name_{number} = 'text {number}'" for number in range(300)) + "\n" + SOURCE, "a.py", "exec"
    )
    assert set(imports_in(code)) == FOUND
