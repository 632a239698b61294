"""Datasets that go wrong, each in its own way; importable by workers."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch
from torch.utils.data import Dataset


class Raising(Dataset):
    """Sample `bad` does what misbehave() does; any other one is its index."""

    def __init__(self, misbehave, bad: object = 5, length: int = 24) -> None:
        self.misbehave = misbehave
        self.bad = bad
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int):
        if index == self.bad:
            self.misbehave()
        return index


class Strings(Dataset):
    """Sample i is a string of lengths[i] characters."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> str:
        return "x" * self.lengths[index]


class Zeros(Strings):
    """Sample i is a tensor of lengths[i] bytes."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(self.lengths[index], dtype=torch.uint8)


class Rows(Dataset):
    """Sample i is `width` times i, in float64."""

    def __init__(self, length: int, width: int) -> None:
        self.length = length
        self.width = width

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((self.width,), float(index), dtype=torch.float64)


class Unloadable(Rows):
    """Can be pickled but not unpickled."""

    def __init__(self, length: int) -> None:
        super().__init__(length, 1)

    def __setstate__(self, state: dict) -> None:
        raise PermissionError("the archive is locked")


class Lengthless(Dataset):
    def __getitem__(self, index: int) -> int:
        return index


class LengthRaises(Lengthless):
    def __len__(self) -> int:
        raise FileNotFoundError("index.json is not there")


# --- exceptions ---


class ManyArguments(Exception):  # noqa: N818
    """Its constructor takes what `args` does not hold."""

    def __init__(self, path: str, *, line: int) -> None:
        super().__init__(f"{path}:{line}")
        self.path = path
        self.line = line


class HoldsALock(Exception):  # noqa: N818
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("with a lock")
        self.lock = threading.Lock()


class HasNoText(Exception):  # noqa: N818
    """Cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class HasNoNotes(Exception):  # noqa: N818
    """Cannot be formatted by traceback before Python 3.13."""

    @property
    def __notes__(self) -> list[str]:
        raise RuntimeError("no notes")


class DecodeFailed(UnicodeDecodeError):  # noqa: N818
    """A builtin that keeps its state outside of `args`, and a constructor of its own."""

    def __init__(self, path: str) -> None:
        super().__init__("utf-8", b"ab\xff", 2, 3, f"invalid start byte in {path}")
        self.path = path


def value_error() -> None:
    raise ValueError("pixel 7 is broken")


def key_error() -> None:
    raise KeyError("label")


def many_arguments() -> None:
    raise ManyArguments("a.csv", line=12)


def with_a_lock() -> None:
    raise HoldsALock


def without_text() -> None:
    raise HasNoText


def without_notes() -> None:
    raise HasNoNotes("with notes that raise")


def local_class() -> None:
    class Local(Exception):  # noqa: N818
        pass

    raise Local("nobody can import me")


def decode_error() -> None:
    b"ab\xff".decode()


def own_decode_error() -> None:
    raise DecodeFailed("a.txt")


def os_error() -> None:
    raise FileNotFoundError(2, "No such file or directory", "a.png")


def chained() -> None:
    try:
        value_error()
    except ValueError as error:
        raise RuntimeError("cannot decode") from error


def with_notes() -> None:
    error = ValueError("see below")
    error.note = "an attribute"  # type: ignore[attr-defined]
    raise error


def timeout_error() -> None:
    raise TimeoutError("the object store does not answer")


def stop_iteration() -> None:
    raise StopIteration("no more")


def long_message() -> None:
    raise ValueError("long " * 100_000)


def unlucky_bytes() -> None:
    raise ValueError("surrogate \udc80 and \0")


def assertion() -> None:
    raise AssertionError


def exit_now() -> None:
    os._exit(3)


def leave() -> None:
    sys.exit("a script's way out")


def segfault() -> None:
    os.kill(os.getpid(), 11)


def recurse() -> None:
    recurse()


class ExitOnce:
    """Ends its process the first time anybody calls it; the file at `marker` remembers."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self) -> None:
        if not self.marker.exists():
            self.marker.touch()
            os._exit(4)


# --- collate_fn, worker_init_fn ---


def collate_that_raises_for_five(samples):
    if 5 in samples:
        raise ArithmeticError("no collation of five")
    return torch.tensor(samples)


def collate_unpicklable(samples):
    return threading.Lock() if 5 in samples else samples


def init_that_raises(place: int) -> None:
    raise ConnectionError(f"worker {place} reaches no database")


def init_that_exits(place: int) -> None:
    os._exit(7)


class AllButZero:
    """Equals every index but 0."""

    def __eq__(self, other: object) -> bool:
        return other != 0

    __hash__ = None  # type: ignore[assignment]
