"""What the backends' workers are given to do; importable by them."""

from __future__ import annotations

import gc
import os
import random
import sys
import threading
import time
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import Dataset, get_worker_info

from tests.scenario.datasets import Made


class Counted(Dataset):
    """Item i is make(i); each call leaves a byte in the file `calls`."""

    def __init__(self, make, calls: Path, length: int = 64) -> None:
        self.make = make
        self.calls = calls
        self.length = length
        calls.touch()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        with self.calls.open("ab") as file:
            file.write(b".")
        return self.make(index)

    @property
    def count(self) -> int:
        return self.calls.stat().st_size


class Gathering(Dataset):
    """Makes a batch's samples at once."""

    def __len__(self) -> int:
        return 64

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [torch.tensor([index, len(indices)]) for index in indices]


class Remembering(Dataset):
    """Item i says how often this very dataset was asked before."""

    asked = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return self.asked - 1


class Collected(Dataset):
    """Tells what the gc had to go through and what not when it was loaded, and whether it is at work now."""

    def __init__(self, found: tuple[int, int] = (0, 0)) -> None:
        self._found = found

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([*self._found, gc.isenabled()])

    def __reduce__(self):
        return _collected, ()


def _collected() -> Collected:
    return Collected((len(gc.get_objects()), gc.get_freeze_count()))


class Unloadable:
    """Cannot be unpickled: fails as `how` says."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self) -> int:
        return 8

    def __reduce__(self):
        return _fail, (self.how,)


class StartsThread(Made):
    """Unpickling it starts a thread, after which no process may fork."""

    def __reduce__(self):
        return _start_thread, (self.make,)


def _start_thread(make) -> StartsThread:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    return StartsThread(make)


def _fail(how: str) -> None:
    if how == "exit":
        sys.exit("nothing to train on")
    while how == "wait":
        time.sleep(60)
    raise LookupError(f"the index is not there: {how}")


def numbered(index: int):
    return torch.full((3,), index, dtype=torch.int16), index


def named(index: int):
    return {"name": f"sample {index}", "pixels": torch.arange(index, index + 4)}


def deviating(index: int) -> torch.Tensor:
    """Sample 5 has another dtype."""
    return torch.full((4,), index, dtype=torch.int64 if index == 5 else torch.int32)


def growing(index: int) -> torch.Tensor:
    """One batch of four has samples of one length; from sample 4 on they are a hundred times longer."""
    return torch.full((40 if index < 4 else 4000,), index, dtype=torch.uint8)


def as_lists(samples):
    return {"samples": list(samples)}


def broken(index: int) -> int:
    if index == 6:
        raise KeyError("label")
    return index


def talkative(index: int) -> int:
    print(f"sample {index}")
    print("to stderr", file=sys.stderr)
    return index


def in_brackets(index: int) -> float:
    """From sample 40 on draws, and leaves the generators as they were."""
    if index < 40:
        return 0.0
    states = random.getstate(), np.random.get_state()
    drawn = random.random() + np.random.rand()
    random.setstate(states[0])
    np.random.set_state(states[1])
    return drawn


def who(index: int) -> torch.Tensor:
    info = get_worker_info()
    return torch.tensor([info.id, info.num_workers, len(info.dataset)])


def process_number(index: int) -> int:
    return os.getpid()


def endless(index: int) -> int:
    """Sample 0 is made at once, any other one never."""
    while index:
        time.sleep(60)
    return os.getpid()


def leaves_at_four(index: int) -> int:
    if index == 4:
        os._exit(3)
    return index


def init_fails(place: int) -> None:
    raise ConnectionError(f"no database for worker {place}")


def init_speaks(place: int) -> None:
    print(f"worker_init_fn of {place}")
