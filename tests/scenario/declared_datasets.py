"""Factories that declared streams name."""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

import torch

from tests.scenario.datasets import Numbers
from tests.scenario.lookback_trainer import Told


def numbers(length=50, width=4):
    return Numbers(length, width)


class Slow(Numbers):
    """Samples that take a while."""

    def __init__(self, length, width, sample_s):
        super().__init__(length, width)
        self.sample_s = sample_s

    def __getitem__(self, index):
        time.sleep(self.sample_s)
        return super().__getitem__(index)


def slow(length=50, width=4, sample_s=0.01):
    return Slow(length, width, sample_s)


def waiting(go):
    """It takes until there is a file `go`."""
    while not os.path.exists(go):
        time.sleep(0.01)
    return Numbers(50)


def beside(directory):
    """One whose module is found where its factory puts the path."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
    return Numbers(50, importlib.import_module("shadowed_numbers").WIDTH)


def environment(name):
    """One that shows where it was made: a dataset of the variable's letters, and of the directory's."""
    return [os.environ[name], os.getcwd()]


def dying(lives, times, how):
    """The first `times` processes that make it end like that, without a word; each adds a line to the file `lives`."""
    with open(lives, "a") as file:
        file.write("\n")
    if len(Path(lives).read_text()) <= times:
        exec(how)
    return Numbers(50)


def mapping():
    return {"no": "dataset"}.keys()


def failing():
    raise ValueError("there is no data here")


def labelled(length=24, width=6):
    """Samples of several kinds of leaves."""
    return [
        {"image": torch.full((3, width), float(index)), "label": index, "path": f"image{index}.jpg"}
        for index in range(length)
    ]


class Bad:
    """Samples as labelled() has them, but for one."""

    def __init__(self, index, text, length):
        self.index = index
        self.text = text
        self.samples = labelled(length)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        if index == self.index:
            raise ValueError(self.text)
        return self.samples[index]


def bad_at_nine(length=24):
    return Bad(9, "nine is bad", length)


def bad_at_zero(length=24):
    return Bad(0, "zero is bad", length)


class BadFromTheBeginning:
    """No sample of it can be made."""

    def __len__(self):
        return 24

    def __getitem__(self, index):
        raise ValueError(f"there is no sample {index}")


def growing(length=24):
    """Samples that become longer: the last batches of 4 have several MiB, the first ones less than one."""
    return [torch.full((10_000 * (1 + index),), float(index)) for index in range(length)]


def jumping(length=24):
    """Samples of 40 kB in the first third of an epoch, then ten times as long, then short again."""
    return [torch.full((100_000 if length // 3 <= index < length // 2 else 10_000,), 1.0) for index in range(length)]


def padded(samples):
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


class Shares(torch.utils.data.IterableDataset):
    """Numbers, each worker's share of them."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        place, workers = (info.id, info.num_workers) if info is not None else (0, 1)
        return iter([torch.full((3,), float(number)) for number in range(place, self.length, workers)])


def shares(length=20):
    return Shares(length)


def deterministic(notes):
    """One that says so itself, and notes which samples were made."""
    dataset = Told(Path(notes))
    dataset.deterministic = True
    return dataset
