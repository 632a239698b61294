"""Datasets that hold an open file, of many libraries: every row is the one that was asked for, in each worker.

DataLoader's own workers share the file's place and get wrong rows of some of them, or errors.
"""

from __future__ import annotations

import importlib

import pytest
import torch
from prefetchd_client import PrefetchLoader

from tests.strangers import open_files


@pytest.mark.parametrize("kind", open_files.ALL, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("shape", ["map", "iterable"])
@pytest.mark.filterwarnings("ignore:Dataset has no geotransform")
def test_every_row_is_the_one_that_was_asked_for(strangers_daemon, tmp_path, monkeypatch, kind, shape):
    if kind in open_files.NEEDS:
        _import_or_skip(open_files.NEEDS[kind])
    monkeypatch.setenv("PREFETCHD_SOCKET", str(strangers_daemon.socket))
    dataset = kind(tmp_path)
    for workers in (0, 1, 4):
        given = dataset if shape == "map" else open_files.InOrder(dataset)
        with PrefetchLoader(given, 6, num_workers=workers) as loader:
            for _ in range(2):
                found = sorted(torch.cat(list(loader)).tolist())
                assert found == list(range(kind.length)), f"{workers} workers"
    assert [dataset[index] for index in range(3)] == [0, 1, 2], "the script's own file is where it was"
    dataset.close()


def _import_or_skip(name: str) -> None:
    try:
        importlib.import_module(name)
    except (ImportError, RuntimeError, OSError) as error:
        # torchcodec raises RuntimeError where FFmpeg's libraries are not installed.
        pytest.skip(f"{name} cannot be used here: {str(error).splitlines()[0]}")
