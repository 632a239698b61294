"""make_sources writes what all contestants' data are made of: JPEGs, prepared pictures and tokens."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.lib.format import open_memmap
from PIL import Image
from prefetchd_demo.pictures import cached_pictures

from benchmarks.peers.feeds import (
    PICTURES,
    PREPARED_SIDE,
    TOKEN_ROWS,
    TOKENS_A_ROW,
    VOCABULARY,
    WORKERS,
    Data,
    listed,
)


def make_sources(made: Path) -> Data:
    """Returns where all of it lies; writes what an earlier run has not. Blocks for some 15 s the first time."""
    data = Data(cached_pictures(PICTURES, WORKERS, lambda directory, so_far: None), made)
    made.mkdir(parents=True, exist_ok=True)
    # The labels are written last: they say that the pictures are whole.
    if not data.labels.exists():
        _write_prepared(data)
    if not data.tokens.exists():
        _write_tokens(data.tokens)
    return data


def _write_prepared(data: Data) -> None:
    pictures = listed(data.pictures)
    shape = (len(pictures), 3, PREPARED_SIDE, PREPARED_SIDE)
    rows = open_memmap(data.prepared, mode="w+", dtype=np.uint8, shape=shape)
    for number, (path, _) in enumerate(pictures):
        with Image.open(path) as image:
            rows[number] = np.asarray(image.convert("RGB").resize((PREPARED_SIDE, PREPARED_SIDE))).transpose(2, 0, 1)
    rows.flush()
    np.save(data.labels, np.array([label for _, label in pictures], np.int64))


def _write_tokens(path: Path) -> None:
    numbers = np.random.default_rng(0).integers(0, VOCABULARY, (TOKEN_ROWS, TOKENS_A_ROW), np.uint16)
    unfinished = path.with_name("unfinished-" + path.name)
    np.save(unfinished, numbers)
    unfinished.rename(path)
