"""The walk of one batch in docs/architecture.md names files that are there, and as many as it says.

That they are the files that a batch passes is measured in tests/scenario/test_one_batch.py.
"""

from __future__ import annotations

import re

from tests.unit.docs.draw import ROOT
from tests.unit.docs.one_batch import files_of_the_walk, walk


def test_each_file_of_the_walk_is_there():
    assert [file for file in files_of_the_walk() if not (ROOT / file).is_file()] == []


def test_the_walk_names_as_many_files_as_it_says():
    said = re.search(r"passes (\d+) files", " ".join(walk().split()))
    assert said is not None
    assert int(said[1]) == len(files_of_the_walk())


def test_each_name_in_the_walk_is_a_link_to_the_file_of_that_name():
    text, links = walk().split("\n[", 1)
    targets = dict(re.findall(r"^\[([\w/]+)\]: (\S+)$", f"[{links}", re.M))
    assert set(re.findall(r"\[([\w/]+)\]", text)) == set(targets)
    assert [name for name, target in targets.items() if not target.endswith(f"/{name}.py")] == []
    assert len(set(targets.values())) == len(targets)
