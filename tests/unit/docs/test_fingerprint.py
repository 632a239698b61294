"""docs/fingerprint.md tells what the fingerprint cannot see: each such place, shown to be blind; and what helps."""

from __future__ import annotations

import os
import textwrap

import numpy as np
from prefetchd_client.fingerprint.walk import describe, fingerprint

from tests.unit.docs.draw import DOCS

TEXT = (DOCS / "fingerprint.md").read_text("utf-8")

VARIANT = "one"


class Reader:
    """Item i of a file."""

    def __init__(self, path, **attributes):
        self.path = path
        vars(self).update(attributes)

    def __getitem__(self, index):
        with open(self.path) as file:
            return file.read() + os.environ.get("".join(("SUF", "FIX")), "")


def digest(dataset, extra=None) -> str:
    return fingerprint({"dataset": dataset, "extra": extra})


def by_computed_name(index):
    return globals()["VARI" + "ANT"]


def by_name(index):
    return VARIANT


def dedented(text):
    return textwrap.dedent(text)


def test_data_files_and_variables_of_computed_names_are_not_seen_and_extra_tells_of_them(tmp_path, monkeypatch):
    path = tmp_path / "data"
    path.write_text("old")
    dataset = Reader(str(path))
    before, read, told = digest(dataset), dataset[0], digest(dataset, path.read_text())
    path.write_text("new")
    monkeypatch.setenv("SUFFIX", "!")
    assert dataset[0] != read
    assert digest(dataset) == before
    assert digest(dataset, path.read_text()) != told


def test_a_write_to_a_mapped_file_is_seen_by_its_time_only(tmp_path):
    path = tmp_path / "data.npy"
    np.arange(100).tofile(path)
    mapped = np.memmap(path, np.int64, "r+")
    before, stamp = digest(mapped), os.stat(path)
    mapped[3] = -1
    mapped.flush()
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert digest(mapped) == before
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
    assert digest(mapped) != before


def test_installed_code_that_is_patched_is_not_seen(monkeypatch):
    before = digest(dedented)
    monkeypatch.setattr(textwrap, "dedent", str.upper)
    assert dedented(" a") == " A"
    assert digest(dedented) == before


def test_computed_names_are_not_seen(monkeypatch):
    before, named = digest(by_computed_name), digest(by_name)
    monkeypatch.setitem(globals(), "VARIANT", "other")
    assert by_computed_name(0) == "other"
    assert digest(by_computed_name) == before
    assert digest(by_name) != named


def test_what_cannot_be_pickled_counts_by_its_type(tmp_path):
    (tmp_path / "one").write_text("1")
    (tmp_path / "other").write_text("2")
    with open(tmp_path / "one") as one, open(tmp_path / "other") as other:
        assert digest(Reader("", file=one)) == digest(Reader("", file=other))
    assert digest(Reader("", file="one")) != digest(Reader("", file="other"))


def test_docstrings_and_annotations_are_not_seen():
    def plain(index):
        return index

    def described(index: int) -> int:
        """What it does."""
        return index

    described.__name__ = described.__qualname__ = "plain"
    described.__code__ = described.__code__.replace(co_name="plain")
    assert digest(plain) == digest(described)


def test_the_parts_tell_which_of_them_changed():
    before = describe({"dataset": Reader("a"), "collate_fn": by_name})
    after = describe({"dataset": Reader("b"), "collate_fn": by_name})
    assert {name for name in before if before[name] != after[name]} == {"dataset"}


def test_the_text_names_what_is_shown_here():
    section = TEXT.split("## What it cannot see")[1].split("\n## ")[0]
    shown = ["Data files", "Environment variables", "mapped file", "patched", "computed", "pickled", "Docstrings"]
    assert not [word for word in shown if word not in section]
