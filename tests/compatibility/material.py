"""What the cases' samples are made of; importable by workers."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import Dataset


class Made(Dataset[Any]):
    """Item i is make(i)."""

    def __init__(self, make: Callable[[int], Any], length: int = 10) -> None:
        self.make = make
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def as_it_is(samples: Any) -> Any:
    """A collate_fn that leaves the samples alone."""
    return samples


def first_of(samples: Any) -> Any:
    """A collate_fn for batches that are made whole in __getitem__."""
    return samples[0]


class Pair(NamedTuple):
    left: Any
    right: Any


PlainPair = collections.namedtuple("PlainPair", ["left", "right"])


class Holder:
    """Its classes are found under its name only, and not under those that they give themselves."""

    Batch = collections.namedtuple("Batch", ["data", "label"])
    Elsewhere = collections.namedtuple("Nowhere", ["data"])


@functools.cache
def made_within(function: str) -> Any:
    """A class that nobody finds by its name, another one for each `function`, and all of them of one name."""

    class Within:
        def __init__(self, value: Any) -> None:
            self.value = (function, value)

    return Within


@functools.cache
def error_made_within() -> Any:
    class OwnError(Exception):
        pass

    return OwnError


@dataclasses.dataclass
class Record:
    name: str
    pixels: torch.Tensor
    scores: list[float] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    name: str
    pixels: torch.Tensor


class Bag:
    """An object with attributes and no equality."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Pinnable(Bag):
    """As DataLoader's documentation has it."""

    def pin_memory(self) -> Pinnable:
        self.pixels = self.pixels.pin_memory()
        return self


class Stateful:
    """Says itself how it pickles."""

    def __init__(self, pixels: torch.Tensor) -> None:
        self.pixels = pixels
        self.cache = "made"

    def __getstate__(self) -> dict[str, Any]:
        return {"pixels": self.pixels}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pixels = state["pixels"]
        self.cache = "made"


class Colour(enum.Enum):
    RED = 1
    GREEN = 2


class Flags(enum.IntFlag):
    FLIPPED = 1
    CROPPED = 2


class Words(str):
    """A string with an attribute."""

    language = "en"


class Numbers(list[Any]):
    """A list with an attribute."""


class Labelled(dict[str, Any]):
    """A dict with attributes, as many libraries have one."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Boxes(torch.Tensor):
    """A subclass of Tensor."""


class Tagged(np.ndarray):
    """A subclass of ndarray."""


def tensor(index: int) -> torch.Tensor:
    return torch.arange(index, index + 6, dtype=torch.float32).reshape(2, 3)


def of_length(index: int) -> torch.Tensor:
    """Longer and shorter, 1 to 7."""
    return torch.arange(1 + index * 5 % 7) + index


def padded(samples: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Padding to the longest, with the lengths."""
    lengths = torch.tensor([len(each) for each in samples])
    return torch.nn.utils.rnn.pad_sequence(list(samples), batch_first=True, padding_value=-1), lengths


IN_MAIN = """
import dataclasses, enum
from typing import NamedTuple

import torch
from torch.utils.data import Dataset


class MainPair(NamedTuple):
    left: torch.Tensor
    right: int


@dataclasses.dataclass
class MainRecord:
    pixels: torch.Tensor
    colour: object

    class Inner:
        pass


class MainColour(enum.Enum):
    RED = 1


class MainTensor(torch.Tensor):
    pass


class MainError(Exception):
    def __init__(self, path, line):
        super().__init__(f"{path}:{line}")
        self.path = path


OFFSET = 3


def shifted(index):
    return index + OFFSET


class MainDataset(Dataset):
    def __init__(self, make=shifted):
        self.make = make

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return self.make(index)


def main_pair(index):
    return MainPair(torch.tensor(index), index)


def main_record(index):
    return MainRecord(torch.full((3,), index), MainColour.RED), MainRecord.Inner, MainColour


def main_error(index):
    if index == 2:
        raise MainError("a.csv", index)
    return index


def main_collate(samples):
    return {"sum": sum(samples) + OFFSET, "samples": samples}
"""


def main() -> Any:
    """The script, as the user wrote it: its classes and functions are __main__'s."""
    module = sys.modules["__main__"]
    if not hasattr(module, "MainPair"):
        exec(IN_MAIN, module.__dict__)
    return module
