"""Datasets that get stuck, each in its own way, and a trainer that waits for one.

python -m tests.scenario.stuck_datasets KIND STREAM
"""

from __future__ import annotations

import sys
import threading
import time

from torch.utils.data import Dataset


class Stuck(Dataset):
    """Sample 5 never comes: wait() does not return."""

    def __init__(self, wait, length: int = 24) -> None:
        self.wait = wait
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == 5:
            self.wait()
        return index


class NeverLoaded(Stuck):
    """Unpickling it does not end."""

    def __setstate__(self, state: dict) -> None:
        asleep()


def asleep() -> None:
    while True:
        time.sleep(60)


def in_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def in_c_code() -> None:
    """Keeps the interpreter to itself."""
    sum(iter(int, 1))


def never_initialised(place: int) -> None:
    asleep()


def nothing() -> None:
    pass


def collate_for_ever(samples):
    if 5 in samples:
        asleep()
    return samples


WAITS = {"asleep": asleep, "in_a_lock": in_a_lock, "in_c_code": in_c_code}


def main(kind: str, stream: str) -> None:
    from prefetchd_client import PrefetchLoader

    options: dict = {"worker_init_fn": never_initialised} if kind == "never_initialised" else {}
    if kind == "collate":
        options["collate_fn"] = collate_for_ever
    dataset = NeverLoaded(nothing) if kind == "never_loaded" else Stuck(WAITS.get(kind, nothing))
    loader = PrefetchLoader(dataset, 4, buffer=6, num_workers=1, stream=stream, **options)
    print("made", file=sys.stderr)
    for batch in loader:
        print(f"batch of {int(batch[0])}", file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
