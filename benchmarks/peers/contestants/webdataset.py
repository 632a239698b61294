"""WebDataset: samples in tar files, read one after the other, shuffled within a buffer.

As on https://webdataset.github.io/webdataset/ and in its notes on WebLoader
https://github.com/webdataset/webdataset/blob/main/README.md: shards are shuffled, then samples in a buffer; batches are
made in the workers, and WebLoader has batch_size=None.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset as wds
from torch.utils.data import default_collate

from benchmarks.peers.datasets import augmented, picture_transform
from benchmarks.peers.feeds import WORKERS, Data, Feed, listed_for
from benchmarks.peers.job import Job

SHARDS, SHUFFLED = 8, 1000
JPEGS = ("jpeg-bytes", "jpeg-validation")


def _stored(feed: str) -> str:
    return "jpeg-bytes" if feed == "jpeg-floats" else feed


def _write(directory: Path, samples: list[dict[str, Any]]) -> None:
    directory.mkdir(parents=True)
    with wds.ShardWriter(str(directory / "%04d.tar"), maxcount=-(-len(samples) // SHARDS), verbose=0) as writer:
        for number, sample in enumerate(samples):
            writer.write({"__key__": f"{number:09}", **sample})


def prepare(data: Data) -> None:
    # A shard of one class only would be shuffled among itself.
    order = np.random.default_rng(0)
    for feed in JPEGS:
        files = listed_for(feed, data.pictures)
        chosen = [files[number] for number in order.permutation(len(files))]
        _write(data.own("webdataset", feed), [{"jpg": path.read_bytes(), "cls": label} for path, label in chosen])
    rows, labels = np.load(data.prepared, mmap_mode="r"), np.load(data.labels)
    numbers = order.permutation(len(rows))
    _write(data.own("webdataset", "prepared"), [{"npy": rows[n], "cls": int(labels[n])} for n in numbers])
    tokens = np.load(data.tokens, mmap_mode="r")
    _write(data.own("webdataset", "tokens"), [{"npy": row} for row in tokens])


def _augmented(picture: np.ndarray[Any, Any]) -> torch.Tensor:
    return augmented(torch.from_numpy(picture))


def _widened(row: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(row.astype(np.int64))


def _only(batch: tuple[torch.Tensor]) -> torch.Tensor:
    return batch[0]


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    shards = sorted(map(str, data.own("webdataset", _stored(feed.name)).glob("*.tar")))
    shuffled = feed.name != "jpeg-validation"
    dataset: Any = wds.WebDataset(shards, shardshuffle=len(shards) if shuffled else False)
    dataset = dataset.shuffle(SHUFFLED) if shuffled else dataset
    if feed.name.startswith("jpeg"):
        dataset = dataset.decode("pil").to_tuple("jpg", "cls").map_tuple(picture_transform(feed.name), int)
    elif feed.name == "prepared":
        dataset = dataset.decode().to_tuple("npy", "cls").map_tuple(_augmented, int)
    else:
        dataset = dataset.decode().to_tuple("npy").map_tuple(_widened)
    dataset = dataset.batched(feed.batch_size, partial=False, collation_fn=default_collate)
    if not feed.has_labels:
        dataset = dataset.map(_only)
    return wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True)
