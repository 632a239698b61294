"""WORKS are the loads of a chaos run's trainers: small streams of every kind, random all the way down."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import random
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

NOTE = struct.Struct("<QQQ")
"""A sample's seed, when it was made (monotonic clock, ns), and by which process."""


class Dice(Dataset[Any]):
    """Draws item i from every generator. `notes` is a file that tells of every sample that was ever made; "" is none. A
    sample takes at least `sample_s`, without work for the CPU."""

    def __init__(self, length: int, width: int, sample_s: float, notes: str = "") -> None:
        self.length = length
        self.width = width
        self.sample_s = sample_s
        self.notes = notes

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        if self.notes:
            self._note()
            time.sleep(self.sample_s)
        return index, torch.rand(self.width), np.random.rand(), random.random(), torch.randint(0, 1 << 40, ())

    def _note(self) -> None:
        fd = os.open(self.notes, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(fd, NOTE.pack(torch.initial_seed(), time.monotonic_ns(), os.getpid()))
        os.close(fd)


class Locked(Dice):
    """Holds a lock, and so cannot be pickled: only a fork has it."""

    def __init__(self, length: int, width: int, sample_s: float, notes: str = "") -> None:
        super().__init__(length, width, sample_s, notes)
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            return super().__getitem__(index)


class Shards(IterableDataset[Any]):
    """Draws item i from every generator. The first shards have more items."""

    def __init__(self, length: int, width: int) -> None:
        self.length = length
        self.width = width

    def __iter__(self) -> Iterator[Any]:
        info: Any = get_worker_info()
        for index in range(info.id, self.length - 8 * info.id, info.num_workers):
            yield index, torch.rand(self.width), np.random.rand(), random.random(), torch.randint(0, 1 << 40, ())


def collate_by_hand(samples: list[Any]) -> dict[str, Any]:
    """Makes a batch of changing length with strings, an array and noise of its own: filled whole, in one slot or
    several."""
    rows = [row for _, row, *_ in samples]
    times = 1 + int(torch.randint(0, 3, ()))
    return {
        "names": [f"sample {index}" for index, *_ in samples],
        "rows": torch.cat(rows * times),
        "noise": np.random.rand(5),
        "rest": tuple(sample[2:] for sample in samples),
    }


@dataclasses.dataclass(frozen=True)
class Work:
    """Describes what one trainer does. `stream` None is a stream that nobody shares; several with the same `stream`
    share it, and its `seed`. `keeps` is the most batches that it holds, `breaks` how likely it breaks an epoch off
    after a batch. With `lookback` it often begins a new life as many batches earlier, at most. With a `generator` the
    order is what DataLoader makes of one that begins with `seed`; if it `reseeds`, of one that begins anew with each
    epoch, which nobody can foresee. With `shards` the dataset is an iterable one. With `files` the stream is a declared
    one, and its batches are files. `executed` trainers are not forked, and what is `locked` cannot be pickled."""

    name: str
    seed: int
    length: int
    batch_size: int
    buffer: int
    stream: str | None = None
    width: int = 8
    sample_s: float = 0.0
    shuffle: bool = True
    collate_fn: Callable[[list[Any]], Any] | None = None
    keeps: int = 0
    breaks: float = 0.0
    lookback: int = 0
    generator: bool = False
    reseeds: bool = False
    shards: int = 0
    files: bool = False
    executed: bool = False
    locked: bool = False

    @property
    def is_shared(self) -> bool:
        """Whether others are on its stream."""
        return self.stream is not None and sum(each.stream == self.stream for each in WORKS) > 1

    @property
    def steps(self) -> int:
        return self._real_steps[-1] + 1

    @functools.cached_property
    def _real_steps(self) -> list[int]:
        """The steps that have a batch."""
        if not self.shards:
            return list(range(-(-self.length // self.batch_size)))
        counts = [len(range(shard, self.length - 8 * shard, self.shards)) for shard in range(self.shards)]
        batches = [-(-count // self.batch_size) for count in counts]
        return sorted(number * self.shards + shard for shard, most in enumerate(batches) for number in range(most))

    def next_real_step(self, step: int) -> int:
        """Returns the next step that has a batch, or the epoch's end."""
        return next((each for each in self._real_steps if each >= step), self.steps)

    def begin_of(self, position: tuple[int, int]) -> tuple[int, int]:
        """Returns where a loader that resumes at `position` begins: after an epoch's last batch with the next epoch."""
        epoch, step = position
        return (epoch + 1, 0) if self.next_real_step(step) == self.steps else (epoch, step)

    def seed_of(self, epoch: int) -> int:
        """Returns what a generator that reseeds begins `epoch` with."""
        return 1000 * self.seed + epoch

    def dataset(self, notes: str = "") -> Dice | Shards:
        if self.shards:
            return Shards(self.length, self.width)
        return (Locked if self.locked else Dice)(self.length, self.width, self.sample_s, notes)


WORKS = (
    Work("small ring", 11, 50, 4, buffer=4, sample_s=0.001, keeps=1, breaks=0.02, executed=True),
    Work(
        "whole batches",
        12,
        45,
        5,
        buffer=9,
        width=512,
        collate_fn=collate_by_hand,
        keeps=2,
        breaks=0.02,
        lookback=3,
    ),
    Work("first of two", 13, 64, 4, buffer=8, stream="shared", keeps=2),
    Work("second of two", 13, 64, 4, buffer=8, stream="shared", executed=True),
    Work(
        "larger ring",
        14,
        600,
        8,
        buffer=24,
        stream="large",
        width=1024,
        sample_s=0.0005,
        keeps=9,
        breaks=0.01,
        lookback=6,
    ),
    Work("with a generator", 15, 60, 4, buffer=8, generator=True, keeps=1, executed=True),
    Work("with a lock", 20, 56, 4, buffer=8, keeps=1, breaks=0.02, locked=True),
    Work("reseeded", 16, 40, 4, buffer=8, generator=True, reseeds=True, breaks=0.03),
    Work("first sampled", 19, 48, 4, buffer=8, stream="sampled", generator=True, reseeds=True, keeps=1, breaks=0.02),
    Work("second sampled", 19, 48, 4, buffer=8, stream="sampled", generator=True, reseeds=True, breaks=0.02),
    Work("iterable", 17, 70, 4, buffer=8, shuffle=False, shards=3, keeps=1, breaks=0.02),
    Work("as files", 18, 80, 4, buffer=8, files=True, keeps=1, breaks=0.02),
)


def digest(batch: Any) -> str:
    """Returns a text that is equal for batches that are equal in type, dtype, shape and content, all the way down."""
    found = hashlib.blake2b(digest_size=12)
    _feed(found, batch)
    return found.hexdigest()


def _feed(found: Any, part: Any) -> None:
    found.update(type(part).__name__.encode())
    if isinstance(part, torch.Tensor):
        found.update(f"{part.dtype} {tuple(part.shape)}".encode() + part.contiguous().numpy().tobytes())
    elif isinstance(part, np.ndarray):
        found.update(f"{part.dtype} {part.shape}".encode() + part.tobytes())
    elif isinstance(part, dict):
        for key, value in part.items():
            _feed(found, key)
            _feed(found, value)
    elif isinstance(part, (list, tuple)):
        found.update(str(len(part)).encode())
        for each in part:
            _feed(found, each)
    else:
        found.update(repr(part).encode())


def scribble(part: Any) -> None:
    """Writes into every tensor and array, as a holder may."""
    if isinstance(part, torch.Tensor):
        part.zero_()
    elif isinstance(part, np.ndarray):
        part[...] = 0
    elif isinstance(part, dict):
        scribble(list(part.values()))
    elif isinstance(part, (list, tuple)):
        for each in part:
            scribble(each)
