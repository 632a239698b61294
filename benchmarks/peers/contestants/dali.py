"""DALI on the CPU: NVIDIA's pipeline of operators in C++ threads, its own decoder.

As on https://docs.nvidia.com/deeplearning/dali/user-guide/docs/examples/use_cases/pytorch/resnet50/pytorch-resnet50.html
and https://docs.nvidia.com/deeplearning/dali/user-guide/docs/plugins/pytorch_plugin_api.html: readers.file, a decoder
that decodes only the random part, resize, DALIGenericIterator. Without a GPU: device_id=None, as the operators' pages
say. Prepared pictures are .npy files, read by decoders.numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.pytorch import DALIGenericIterator, LastBatchPolicy

from benchmarks.peers.feeds import CROP, MEAN, PREPARED_SIDE, STD, WORKERS, Data, Feed, listed_for
from benchmarks.peers.job import Job

READER = "reader"


class Batches:
    """Turns DALI's dictionaries into pairs of pictures, channels first without a copy, and labels."""

    def __init__(self, iterator: Any, *, are_planes: bool) -> None:
        self.iterator = iterator
        self.are_planes = are_planes

    def __iter__(self) -> Iterator[Any]:
        for (found,) in self.iterator:
            samples = found["samples"] if self.are_planes else found["samples"].permute(0, 3, 1, 2)
            yield samples, found["labels"].view(-1)


def prepare(data: Data) -> None:
    """Writes each prepared picture to a file, by class."""
    directory, rows = data.own("dali", "prepared"), np.load(data.prepared, mmap_mode="r")
    for number, label in enumerate(np.load(data.labels)):
        place = directory / f"{label:02}"
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{number:06}.npy", rows[number].transpose(1, 2, 0))


@pipeline_def
def pictures(feed: Feed, data: Data) -> Any:
    files = listed_for(feed.name, data.pictures)
    is_validation = feed.name == "jpeg-validation"
    encoded, labels = fn.readers.file(
        files=[str(path) for path, _ in files],
        labels=[label for _, label in files],
        random_shuffle=not is_validation,
        name=READER,
    )
    if is_validation:
        images = fn.resize(fn.decoders.image(encoded), resize_shorter=PREPARED_SIDE)
        images = fn.crop(images, crop=(CROP, CROP))
    else:
        part = fn.decoders.image_random_crop(encoded, random_area=[0.08, 1.0], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(part, resize_x=CROP, resize_y=CROP)
        if feed.name == "jpeg-floats":
            images = fn.crop_mirror_normalize(
                images,
                dtype=types.FLOAT,
                output_layout="CHW",
                mean=[255 * each for each in MEAN],
                std=[255 * each for each in STD],
                mirror=fn.random.coin_flip(),
            )
        else:
            images = fn.flip(images, horizontal=fn.random.coin_flip())
    return images, fn.cast(labels, dtype=types.INT64)


@pipeline_def
def prepared(data: Data) -> Any:
    directory = str(data.own("dali", "prepared"))
    encoded, labels = fn.readers.file(file_root=directory, file_filters="*.npy", random_shuffle=True, name=READER)
    images = fn.reshape(fn.decoders.numpy(encoded), layout="HWC")
    place = {"crop_pos_x": fn.random.uniform(range=[0.0, 1.0]), "crop_pos_y": fn.random.uniform(range=[0.0, 1.0])}
    images = fn.crop(images, crop=(CROP, CROP), **place)
    return fn.flip(images, horizontal=fn.random.coin_flip()), fn.cast(labels, dtype=types.INT64)


def loader(feed: Feed, data: Data, job: Job) -> Iterable[Any]:
    how: dict[str, Any] = {"batch_size": feed.batch_size, "num_threads": WORKERS, "device_id": None}
    pipe = prepared(data, **how) if feed.name == "prepared" else pictures(feed, data, **how)
    iterator = DALIGenericIterator(
        [pipe], ["samples", "labels"], reader_name=READER, last_batch_policy=LastBatchPolicy.DROP, auto_reset=True
    )
    return Batches(iterator, are_planes=feed.name == "jpeg-floats")
