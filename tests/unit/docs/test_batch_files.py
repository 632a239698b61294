"""docs/batch-files.md has every kind of node that a batch's structure may have, and the reader decodes each."""

from __future__ import annotations

import inspect
import re

from prefetchd_client.batches import structures

from prefetchd.workers import structure_nodes
from tests.unit.docs.draw import DOCS


def written() -> set[str]:
    """The kinds that a worker writes; an object is one of several keys."""
    return set(re.findall(r'\{"(\w+)":', inspect.getsource(structure_nodes._Encoder))) | {"object"}


def test_each_kind_that_is_written_is_read():
    assert written() == {name[1:-3] for name in vars(structures._Decoder) if name.endswith("_of")} | {"object"}


def test_each_kind_is_in_both_tables():
    table = re.findall(r"^\| .*$", (DOCS / "batch-files.md").read_text("utf-8"), re.M)
    assert {kind for line in table for kind in re.findall(r'`\{"(\w+)":', line)} == written()
    assert set(re.findall(r'\{"(\w+)": ', structure_nodes.__doc__ or "")) == written()
