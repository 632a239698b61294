"""LitData: samples in optimized chunks, StreamingDataset and StreamingDataLoader; tokens by its TokensLoader.

As on https://github.com/Lightning-AI/litData and https://lightning.ai/docs/litdata/features/llm-pre-training:
optimize() once, JPEGs kept as they are and decoded to tensors, transforms in the dataset. Chunks lie on this machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import litdata
import numpy as np
import torch
from PIL import Image

from benchmarks.peers.datasets import augmented, tensor_transform
from benchmarks.peers.feeds import TOKENS_A_ROW, WORKERS, Data, Feed, listed_for
from benchmarks.peers.job import Job

CHUNK, TOKENS_A_CHUNK = "64MB", 128 * 20_000


def _picture(item: tuple[str, int]) -> dict[str, Any]:
    return {"samples": Image.open(item[0]), "labels": item[1]}


def _prepared(number: int, data: Data) -> dict[str, Any]:
    row = np.load(data.prepared, mmap_mode="r")[number]
    return {"samples": torch.from_numpy(row.copy()), "labels": int(np.load(data.labels)[number])}


def _tokens(numbers: range, data: Data) -> Any:
    for row in np.load(data.tokens, mmap_mode="r")[numbers.start : numbers.stop]:
        yield torch.from_numpy(row.astype(np.int64))


def prepare(data: Data) -> None:
    for feed in ("jpeg-bytes", "jpeg-validation"):
        files = [(str(path), label) for path, label in listed_for(feed, data.pictures)]
        litdata.optimize(_picture, files, str(data.own("litdata", feed)), chunk_bytes=CHUNK, num_workers=1)
    pictures = partial(_prepared, data=data)
    rows = len(np.load(data.labels))
    litdata.optimize(
        pictures, list(range(rows)), str(data.own("litdata", "prepared")), chunk_bytes=CHUNK, num_workers=1
    )
    tokens, own = len(np.load(data.tokens, mmap_mode="r")), str(data.own("litdata", "tokens"))
    pieces = [range(first, min(first + 10_000, tokens)) for first in range(0, tokens, 10_000)]
    litdata.optimize(
        partial(_tokens, data=data),
        pieces,
        own,
        chunk_size=TOKENS_A_CHUNK,
        num_workers=1,
        item_loader=litdata.TokensLoader(),
    )


class Samples(litdata.StreamingDataset):
    """Reads a sample, and transforms it."""

    def __init__(self, feed: str, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.change = augmented if feed == "prepared" else tensor_transform(feed)

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return self.change(found["samples"]), found["labels"]


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    own = str(data.own("litdata", "jpeg-bytes" if feed.name == "jpeg-floats" else feed.name))
    how: dict[str, Any] = {"shuffle": feed.name != "jpeg-validation", "drop_last": True}
    if feed.name == "tokens":
        dataset: Any = litdata.StreamingDataset(own, item_loader=litdata.TokensLoader(TOKENS_A_ROW), **how)
    else:
        dataset = Samples(feed.name, own, **how)
    return litdata.StreamingDataLoader(
        dataset, batch_size=feed.batch_size, num_workers=WORKERS, drop_last=True, persistent_workers=True
    )
