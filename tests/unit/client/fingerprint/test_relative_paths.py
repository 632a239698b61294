"""The working directory counts where relative paths are held, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest
from prefetchd_client.fingerprint.relative_paths import directory_that_counts


class Files:
    def __init__(self, held) -> None:
        self.held = held


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "0.jpg").touch()
    monkeypatch.chdir(tmp_path)
    return str(tmp_path)


@pytest.mark.parametrize(
    "held",
    ["data", Path("data"), ("data/0.jpg", 3), {"root": "data"}, [f"data/{at}.jpg" for at in range(5000)]],
    ids=["text", "path", "sample", "dict", "long list"],
)
def test_a_relative_path_of_what_is_there(here, held):
    assert directory_that_counts({"dataset": Files(held)}) == here


@pytest.mark.parametrize("held", ["", "cat", "a\0b", "data\n", 5, None, [], ["dog"] * 5000, "x" * 100_000])
def test_other_texts(here, held):
    assert directory_that_counts({"dataset": Files(held)}) == ""


def test_absolute_paths(here):
    assert directory_that_counts({"dataset": Files([here, f"{here}/data"])}) == ""
