"""SPDL: a pipeline of stages in threads, its own decoder (FFmpeg), batches converted at once.

As its guides say: https://facebookresearch.github.io/spdl/latest/getting_started/pytorch.html (batches of indices are
the source, decoding is a stage of its own), https://facebookresearch.github.io/spdl/latest/io/filtering.html (crop,
scale and flip are filters of the decoder), https://facebookresearch.github.io/spdl/latest/best_practice.html (frames
become one batch tensor at once). A continuous source keeps the pipeline running across epochs.

It needs FFmpeg's shared libraries, 4 to 9, on the system (Debian: apt install ffmpeg).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import spdl.io
import torch
from spdl.pipeline import PipelineBuilder

from benchmarks.peers.feeds import CROP, MEAN, PREPARED_SIDE, STD, WORKERS, Data, Feed, listed_for
from benchmarks.peers.job import Job

SINK_BATCHES = 4
SCALE = f"scale={CROP}:{CROP}:flags=bilinear"
RGB = "format=pix_fmts=rgb24"


class Source:
    """Yields an epoch's items for each iter(), shuffled anew each time."""

    def __init__(self, items: list[Any], *, shuffle: bool) -> None:
        self.items = items
        self.shuffle = shuffle

    def __iter__(self) -> Iterator[Any]:
        return iter(random.sample(self.items, len(self.items)) if self.shuffle else self.items)


class BatchesOfIndices:
    """Yields shuffled lists of indices: a stage is told of a batch at once, where a sample costs little."""

    def __init__(self, length: int, batch_size: int) -> None:
        self.length = length
        self.batch_size = batch_size

    def __iter__(self) -> Iterator[list[int]]:
        batches = torch.randperm(self.length).split(self.batch_size)
        return (batch.tolist() for batch in batches if len(batch) == self.batch_size)


def random_filter(width: int, height: int) -> str:
    """Returns the filters of a random resized crop, of torchvision's proportions, and a flip."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1.0)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if w <= width and h <= height:
            break
    else:
        w = h = min(width, height)
    place = f"crop={w}:{h}:{random.randint(0, width - w)}:{random.randint(0, height - h)}"
    return ",".join([place, SCALE, *(["hflip"] if random.random() < 0.5 else []), RGB])


def centre_filter(width: int, height: int) -> str:
    scale = PREPARED_SIDE / min(width, height)
    return f"scale={round(width * scale)}:{round(height * scale)}:flags=bilinear,crop={CROP}:{CROP},{RGB}"


def decoded(filters: Callable[[int, int], str]) -> Callable[[tuple[str, int]], tuple[Any, int]]:
    def decode(item: tuple[str, int]) -> tuple[Any, int]:
        packets = spdl.io.demux_image(item[0])
        return spdl.io.decode_packets(packets, filter_desc=filters(packets.width, packets.height)), item[1]

    return decode


def collated(items: list[tuple[Any, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Makes one tensor of all frames, channels last in memory."""
    frames, labels = zip(*items)
    return spdl.io.to_torch(spdl.io.convert_frames(list(frames))).permute(0, 3, 1, 2), torch.tensor(labels)


def normalised(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    mean = torch.tensor(MEAN).mul_(255).view(1, 3, 1, 1)
    scale = torch.tensor(STD).mul_(255).reciprocal_().view(1, 3, 1, 1)
    return batch[0].float().sub_(mean).mul_(scale), batch[1]


def pictures(feed: Feed, data: Data) -> PipelineBuilder[Any, Any]:
    is_validation = feed.name == "jpeg-validation"
    items = [(str(path), label) for path, label in listed_for(feed.name, data.pictures)]
    builder = (
        PipelineBuilder()
        .add_source(Source(items, shuffle=not is_validation), continuous=True)
        .pipe(decoded(centre_filter if is_validation else random_filter), concurrency=WORKERS)
        .aggregate(feed.batch_size, drop_last=True)
        .pipe(collated)
    )
    return builder.pipe(normalised) if feed.name == "jpeg-floats" else builder


def rows(feed: Feed, data: Data) -> PipelineBuilder[Any, Any]:
    """Prepared pictures, or tokens: each batch is gathered by one call, in a thread."""
    mapped = np.load(data.prepared if feed.name == "prepared" else data.tokens, mmap_mode="r")
    labels = torch.from_numpy(np.load(data.labels)) if feed.has_labels else None

    def gathered(indices: list[int]) -> Any:
        if labels is None:
            return torch.from_numpy(mapped[indices].astype(np.int64))
        batch = torch.empty(len(indices), *feed.shape, dtype=torch.uint8)
        for picture, index in zip(batch, indices):
            top, left = random.randint(0, PREPARED_SIDE - CROP), random.randint(0, PREPARED_SIDE - CROP)
            part = mapped[index, :, top : top + CROP, left : left + CROP]
            picture.numpy()[:] = part[..., ::-1] if random.random() < 0.5 else part
        return batch, labels[indices]

    return (
        PipelineBuilder()
        .add_source(BatchesOfIndices(len(mapped), feed.batch_size), continuous=True)
        .pipe(gathered, concurrency=WORKERS)
    )


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    builder = pictures(feed, data) if feed.name.startswith("jpeg") else rows(feed, data)
    return builder.add_sink(SINK_BATCHES).build(num_threads=WORKERS)
