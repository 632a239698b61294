"""Programs as an actor gets them, and what workers on a node are given to do; importable by these."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

from prefetchd_client.program.program_pickle import pickle_program, write_program
from torch.utils.data import Dataset

from prefetchd.wire.process_environment import current_environment
from prefetchd.wire.program_layout import Environment
from prefetchd.wire.runtime_paths import runtime_paths

# Nothing is written there: a program's segment has no name until a daemon takes it over.
PATHS = runtime_paths("/run/of/no/daemon.sock", {})


def program_of(
    dataset: Any,
    *,
    collate_fn: Any = None,
    worker_init_fn: Any = None,
    environment: Environment | None = None,
) -> int:
    """A descriptor of the program's segment, which the caller closes."""
    parts = {"dataset": dataset, "collate_fn": collate_fn, "worker_init_fn": worker_init_fn}
    _, fd, _ = write_program(PATHS, environment or current_environment(), *pickle_program(parts))
    return fd


class Halting(Dataset):
    """Item 0 is the worker's pid; at any other item it writes that into `begun`, and does not come back."""

    def __init__(self, begun: Path) -> None:
        self.begun = begun
        begun.touch()

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index:
            self.begun.write_text(str(os.getpid()))
        while index:
            time.sleep(60)
        return os.getpid()


class SaysHalfALine:
    """Loading it prints something without an end of line."""

    def __len__(self) -> int:
        return 8

    def __reduce__(self):
        return _say, ("loading... ",)


def _say(text: str) -> SaysHalfALine:
    print(text, end="", flush=True)
    return SaysHalfALine()


class LeavesAProcess:
    """Loading it starts a process that outlives whoever loads it, and writes its pid into `noted`."""

    def __init__(self, noted: Path) -> None:
        self.noted = noted

    def __len__(self) -> int:
        return 8

    def __reduce__(self):
        return _leave, (self.noted,)


def _leave(noted: Path) -> LeavesAProcess:
    noted.write_text(str(subprocess.Popen(["sleep", "600"]).pid))
    return LeavesAProcess(noted)


def init_leaves(place: int) -> None:
    os._exit(3)
