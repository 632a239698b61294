"""A trainer that is told line by line what to do, so that two of them can be compared while they run at once.

python -m tests.timed.racing_trainer SOCKET NAME

Each line is a JSON array; so is each answer.
    ["open", KIND, MARKS]           makes the loader of that kind and takes its first batch
    ["take", KIND, SECONDS, EVERY]  takes batches for so long, each as soon as it is there or one every EVERY seconds;
                                    answers how many, and the longest time in ms that it waited for one. What was
                                    ready before is left aside: SETTLE_S are not counted
    ["close", KIND]
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
from torch.utils.data import Dataset, IterableDataset, get_worker_info

BUFFERS = {"cheap": 64}
"""In batches, by kind; else 8. While its trainer waits for a CPU, a ring of cheap batches is not to be full at once:
the other one rightly gets the worker then, for a whole task."""
SETTLE_S = 0.4
LONG_S = 0.06
"""Longer than what a worker has in its queue beside another task."""


def sleeps(index: int) -> int:
    time.sleep(0.02)
    return index


def sleeps_long(index: int) -> int:
    time.sleep(LONG_S)
    return index


def computes(index: int) -> int:
    return sum(range(40_000)) + index


def costs_nothing(index: int) -> int:
    return index


def is_huge(index: int) -> np.ndarray:
    return np.full(2 << 20, index % 256, np.uint8)


class Endless(Dataset):
    """Sample i is make(i); the file `marks`, if there is one, gets the name's first letter for each."""

    def __init__(self, make, marks: str, name: str) -> None:
        self.make, self.marks, self.name = make, marks, name

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, index: int):
        mark(self.marks, self.name[0])
        return self.make(index)


class EndlessRows(IterableDataset):
    """Numbers, a worker's part of them, 2 ms each."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        for index in itertools.count(info.id if info else 0, info.num_workers if info else 1):
            time.sleep(0.002)
            yield index


def mark(marks: str, letter: str) -> None:
    """Adds the letter to the file, in the order of all processes."""
    if marks:
        fd = os.open(marks, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(fd, letter.encode())
        os.close(fd)


def worker_is_there(marks: str, place: int) -> None:
    mark(marks, "!")


MAKES = {"sleeping": sleeps, "long": sleeps_long, "computing": computes, "cheap": costs_nothing, "huge": is_huge}
BATCH_SIZES = {"long": 1, "cheap": 16}
KINDS = ("sleeping", "computing", "cheap", "huge", "iterable")


def loader_of(kind: str, name: str, socket: str, marks: str):
    from prefetchd_client import PrefetchLoader

    dataset = EndlessRows() if kind == "iterable" else Endless(MAKES[kind], marks, name)
    init = {"worker_init_fn": partial(worker_is_there, marks)} if marks else {}
    return PrefetchLoader(
        dataset,
        BATCH_SIZES.get(kind, 4),
        num_workers=2,
        buffer=BUFFERS.get(kind, 8),
        stream=f"{name} {kind}",
        socket=socket,
        timeout=60,
        **init,
    )


def take(batches: Iterator, seconds: float, every_s: float) -> tuple[int, int]:
    """How many batches came within the time, and the longest wait for one of all, in ms."""
    longest_s = 0.0
    due_s = time.monotonic()
    begin_s = due_s + SETTLE_S
    count = 0
    while time.monotonic() < begin_s + seconds:
        if every_s:
            due_s += every_s
            time.sleep(max(0.0, due_s - time.monotonic()))
        asked_s = time.monotonic()
        next(batches)
        longest_s = max(longest_s, time.monotonic() - asked_s)
        count += begin_s <= time.monotonic() < begin_s + seconds
    return count, round(1000 * longest_s)


def main(socket: str, name: str) -> None:
    loaders, batches = {}, {}
    for line in sys.stdin:
        verb, kind, *arguments = json.loads(line)
        answer: object = None
        if verb == "open":
            loaders[kind] = loader_of(kind, name, socket, *arguments)
            batches[kind] = iter(loaders[kind])
            next(batches[kind])
        elif verb == "take":
            answer = take(batches[kind], *arguments)
        else:
            del batches[kind]
            loaders.pop(kind).close()
        print(json.dumps([answer]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
