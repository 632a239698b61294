"""MosaicML Streaming: samples in MDS shards, a shuffle that is the same for any number of workers.

As on https://docs.mosaicml.com/projects/streaming/en/stable/getting_started/quick_start.html and
https://docs.mosaicml.com/projects/streaming/en/stable/preparing_datasets/dataset_format.html: MDSWriter with a column
of type jpeg, StreamingDataset with batch_size, StreamingDataLoader. Shards lie on this machine and are not compressed:
there is nothing to be fetched.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from PIL import Image
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

from benchmarks.peers.datasets import augmented, picture_transform
from benchmarks.peers.feeds import PREPARED_SIDE, WORKERS, Data, Feed, listed_for
from benchmarks.peers.job import Job

PICTURE = f"ndarray:uint8:3,{PREPARED_SIDE},{PREPARED_SIDE}"
# Two jobs that begin at once may take the same free name in shared memory: FileExistsError.
STARTS_ALONE = True


def prepare(data: Data) -> None:
    for feed in ("jpeg-bytes", "jpeg-validation"):
        with MDSWriter(
            out=str(data.own("mosaicml_streaming", feed)), columns={"samples": "jpeg", "labels": "int"}
        ) as writer:
            for path, label in listed_for(feed, data.pictures):
                with Image.open(path) as image:
                    writer.write({"samples": image, "labels": label})
    rows, labels = np.load(data.prepared, mmap_mode="r"), np.load(data.labels)
    with MDSWriter(
        out=str(data.own("mosaicml_streaming", "prepared")), columns={"samples": PICTURE, "labels": "int"}
    ) as writer:
        for row, label in zip(rows, labels):
            writer.write({"samples": np.asarray(row), "labels": int(label)})
    tokens = np.load(data.tokens, mmap_mode="r")
    columns = {"samples": f"ndarray:uint16:{tokens.shape[1]}"}
    with MDSWriter(out=str(data.own("mosaicml_streaming", "tokens")), columns=columns) as writer:
        for row in tokens:
            writer.write({"samples": np.asarray(row)})
    # Two jobs may not have the same local directory.
    shutil.copytree(data.own("mosaicml_streaming", "jpeg-bytes"), data.own("mosaicml_streaming", "jpeg-bytes-1"))


class Samples(StreamingDataset):
    """Reads a sample, and transforms it."""

    def __init__(self, transform: Callable[[Any], torch.Tensor], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        found = super().__getitem__(index)
        sample = self.transform(found["samples"])
        return (sample, found["labels"]) if "labels" in found else sample


def _augmented(picture: np.ndarray[Any, Any]) -> torch.Tensor:
    return augmented(torch.from_numpy(picture.copy()))


def _widened(row: np.ndarray[Any, Any]) -> torch.Tensor:
    return torch.from_numpy(row.astype(np.int64))


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    stored = "jpeg-bytes" if feed.name == "jpeg-floats" else feed.name
    stored += "-1" if job.trainer == 1 else ""
    transform = picture_transform(feed.name) if feed.name.startswith("jpeg") else _augmented
    dataset = Samples(
        _widened if feed.name == "tokens" else transform,
        local=str(data.own("mosaicml_streaming", stored)),
        shuffle=feed.name != "jpeg-validation",
        batch_size=feed.batch_size,
    )
    return StreamingDataLoader(
        dataset, batch_size=feed.batch_size, num_workers=WORKERS, drop_last=True, persistent_workers=True
    )
