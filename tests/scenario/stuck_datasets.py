"""Datasets that get stuck, each in its own way, and a trainer that waits for one.

python -m tests.scenario.stuck_datasets KIND STREAM
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Iterator

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


HELD = threading.Lock()


def in_a_lock() -> None:
    """Another thread of the trainer has it, when the loader is made."""
    HELD.acquire()
    HELD.release()


@contextlib.contextmanager
def lock_of_another_thread() -> Iterator[None]:
    """That one lets it go afterwards: here it is free then, and in a fork it never is."""
    has_it, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        with HELD:
            has_it.set()
            may_go.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    has_it.wait()
    yield
    may_go.set()
    thread.join()


def in_c_code() -> None:
    """Keeps the interpreter to itself."""
    sum(iter(int, 1))


def imports_for_long(place: int) -> None:
    importlib.import_module("slow_to_import")


def never_initialised(place: int) -> None:
    asleep()


def nothing() -> None:
    pass


def collate_for_ever(samples):
    if 5 in samples:
        asleep()
    return samples


INITS = {"never_initialised": never_initialised, "imports_for_long": imports_for_long}
WAITS = {"asleep": asleep, "in_a_lock": in_a_lock, "in_c_code": in_c_code}


def main(kind: str, stream: str) -> None:
    from prefetchd_client import PrefetchLoader

    options: dict = {"worker_init_fn": INITS[kind]} if kind in INITS else {}
    if kind == "collate":
        options["collate_fn"] = collate_for_ever
    dataset: Dataset = NeverLoaded(nothing) if kind == "never_loaded" else Stuck(WAITS.get(kind, nothing))
    if kind == "slow_in_workers":
        dataset = importlib.import_module(kind).Rows()
    with lock_of_another_thread():
        loader = PrefetchLoader(dataset, 4, buffer=6, num_workers=1, stream=stream, **options)
    print("made", file=sys.stderr)
    for batch in loader:
        print(f"batch of {int(batch[0])}", file=sys.stderr)


if __name__ == "__main__":
    # So that nothing of this file is pickled by value.
    importlib.import_module("tests.scenario.stuck_datasets").main(*sys.argv[1:])
