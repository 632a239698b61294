"""The parts that fuzzed programs are made of: datasets with state inside and outside of what a loader can see.

Each dataset returns small integers, so that outcomes can be compared and read. `set(value)` is what the training loop
calls to change the state that samples read.
"""

from __future__ import annotations

import gzip
import io
import mmap
import multiprocessing as mp
import os
import random
import sqlite3
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

LENGTH = 12
ROW_BYTES = 20_000
BASE = 100

level = 0
"""A global that samples read, and that the loop sets."""

calls = 0
"""A global that samples count in."""


class Part(Dataset[Any]):
    """Sample i is i, and what the kind of state adds. `mark` tells programs apart that are otherwise alike."""

    def __init__(self, directory: Path, mark: int) -> None:
        self.directory = str(directory)
        self.mark = mark
        self.length = LENGTH

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return BASE * self.state() + index

    def state(self) -> int:
        return 0

    def set(self, value: int) -> None:
        """Change what samples read. Does nothing where they read nothing."""

    def told(self) -> Any:
        """Return what the loop can find in this object after samples were made."""


class Pure(Part):
    pass


class SharedValue(Part):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.value = mp.Value("i", 0)

    def state(self) -> int:
        return self.value.value

    def set(self, value: int) -> None:
        self.value.value = value


class SharedTensor(Part):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.value = torch.zeros(1, dtype=torch.int64).share_memory_()

    def state(self) -> int:
        return int(self.value)

    def set(self, value: int) -> None:
        self.value[0] = value


class SharedArray(Part):
    """The value lies in an ordinary array over shared memory."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.values = np.frombuffer(mp.Array("q", 4).get_obj(), np.int64)

    def state(self) -> int:
        return int(self.values[0])

    def set(self, value: int) -> None:
        self.values[0] = value


class Attribute(Part):
    level = 0

    def state(self) -> int:
        return self.level

    def set(self, value: int) -> None:
        self.level = value


class ClassAttribute(Part):
    level = 0

    def state(self) -> int:
        return type(self).level

    def set(self, value: int) -> None:
        type(self).level = value


class Global(Part):
    def state(self) -> int:
        return level

    def set(self, value: int) -> None:
        global level
        level = value


class Environment(Part):
    def state(self) -> int:
        return int(os.environ.get("PREFETCHD_FUZZ_LEVEL", "0"))

    def set(self, value: int) -> None:
        os.environ["PREFETCHD_FUZZ_LEVEL"] = str(value)


class HiddenEnvironment(Environment):
    """The variable's name is not in the code."""

    def state(self) -> int:
        return int(os.environ.get("_".join(["PREFETCHD", "FUZZ", "LEVEL"]), "0"))


class Array(Part):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.values = np.zeros(4, np.int64)

    def state(self) -> int:
        return int(self.values[1])

    def set(self, value: int) -> None:
        self.values[1] = value


class SmallFile(Part):
    """Each sample reads a file by its path. The loop replaces the file as careful programs do."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.path = os.path.join(self.directory, f"level-{self.mark}")
        self.set(0)

    def state(self) -> int:
        return int(Path(self.path).read_text())

    def set(self, value: int) -> None:
        Path(f"{self.path}.new").write_text(str(value))
        os.replace(f"{self.path}.new", self.path)


class IndexFile(SmallFile):
    """Samples map a file, which the loop writes in place."""

    def state(self) -> int:
        return int(np.memmap(self.path, np.int64, mode="r")[0])

    def set(self, value: int) -> None:
        np.full(2, value, np.int64).tofile(self.path)


class MappedFile(Part):
    """The dataset has the file mapped for reading, and the loop writes it through a mapping."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.path = os.path.join(self.directory, f"map-{self.mark}")
        np.zeros(4, np.int64).tofile(self.path)
        self.values = np.memmap(self.path, np.int64, mode="r")

    def state(self) -> int:
        return int(self.values[2])

    def set(self, value: int) -> None:
        written = np.memmap(self.path, np.int64, mode="r+")
        written[2] = value
        written.flush()


class Counter(Part):
    """Counts its samples in an attribute, and returns the count."""

    count = 0

    def __getitem__(self, index: int) -> int:
        self.count += 1
        return BASE * self.count + index

    def told(self) -> Any:
        return self.count


class ClassCounter(Counter):
    def __getitem__(self, index: int) -> int:
        type(self).count += 1
        return BASE * type(self).count + index


class GlobalCounter(Part):
    def __getitem__(self, index: int) -> int:
        global calls
        calls += 1
        return BASE * calls + index

    def told(self) -> Any:
        return calls


class SharedCounter(Part):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.count = mp.Value("i", 0)

    def __getitem__(self, index: int) -> int:
        with self.count.get_lock():
            self.count.value += 1
            return BASE * self.count.value + index

    def told(self) -> Any:
        return self.count.value


class Seen(Part):
    """Keeps a list of its samples, which the loop may read."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: list[int] = []

    def __getitem__(self, index: int) -> int:
        self.seen.append(index)
        return index

    def told(self) -> Any:
        return list(self.seen)


class Cache(Part):
    """Fills a cache, and returns from it how many samples were in it when each was made."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cache: dict[int, int] = {}

    def __getitem__(self, index: int) -> int:
        if index not in self.cache:
            self.cache[index] = BASE * len(self.cache) + index
        return self.cache[index]


class PlainCache(Part):
    """Fills a cache that changes nothing of what is returned."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.cache: dict[int, int] = {}

    def __getitem__(self, index: int) -> int:
        return self.cache.setdefault(index, index)


class Sobol(Part):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.engine = torch.quasirandom.SobolEngine(1)

    def __getitem__(self, index: int) -> int:
        return BASE * int(1000 * float(self.engine.draw(1))) + index


class Gathered(Part):
    """Has __getitems__, which counts its calls."""

    calls = 0

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.calls += 1
        return [BASE * self.calls + index for index in indices]


# --- open files ---


class Rows(Part):
    """Row i of a file is full of i. The file is open in the dataset."""

    buffering = -1

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.path = os.path.join(self.directory, f"rows-{type(self).__name__}-{self.mark}")
        self.make()
        self.open()

    def row(self, index: int) -> bytes:
        return bytes([index + 1]) * ROW_BYTES

    def make(self) -> None:
        Path(self.path).write_bytes(b"".join(map(self.row, range(LENGTH))))

    def open(self) -> None:
        self.file: Any = open(self.path, "rb", buffering=self.buffering)  # noqa: SIM115

    def read(self, index: int) -> bytes:
        self.file.seek(index * ROW_BYTES)
        return self.file.read(ROW_BYTES)

    def __getitem__(self, index: int) -> int:
        found = self.read(index)
        return index if found == self.row(index) else -1


class UnbufferedRows(Rows):
    buffering = 0


class ReadWriteRows(Rows):
    def open(self) -> None:
        self.file = open(self.path, "r+b")  # noqa: SIM115


class DeletedRows(Rows):
    def open(self) -> None:
        super().open()
        os.unlink(self.path)


class MemoryRows(Rows):
    def make(self) -> None:
        self.number = os.memfd_create("rows")
        os.write(self.number, b"".join(map(self.row, range(LENGTH))))

    def open(self) -> None:
        self.file = os.fdopen(self.number, "rb", buffering=0)


class TarRows(Rows):
    def make(self) -> None:
        with tarfile.open(self.path, "w") as archive:
            for index in range(LENGTH):
                member = tarfile.TarInfo(str(index))
                member.size = ROW_BYTES
                archive.addfile(member, io.BytesIO(self.row(index)))

    def open(self) -> None:
        self.file = tarfile.open(self.path)  # noqa: SIM115
        self.file.getmembers()

    def read(self, index: int) -> bytes:
        return self.file.extractfile(str(index)).read()


class ZipRows(Rows):
    def make(self) -> None:
        with zipfile.ZipFile(self.path, "w") as archive:
            for index in range(LENGTH):
                archive.writestr(str(index), self.row(index))

    def open(self) -> None:
        self.file = zipfile.ZipFile(self.path)

    def read(self, index: int) -> bytes:
        return self.file.read(str(index))


class GzipRows(Rows):
    def make(self) -> None:
        with gzip.open(self.path, "wb") as file:
            file.write(b"".join(map(self.row, range(LENGTH))))

    def open(self) -> None:
        self.file = gzip.open(self.path, "rb")  # noqa: SIM115


class MappedRows(Rows):
    def open(self) -> None:
        with open(self.path, "rb") as file:
            self.file = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def read(self, index: int) -> bytes:
        return self.file[index * ROW_BYTES : (index + 1) * ROW_BYTES]

    def __deepcopy__(self, memo: Any) -> MappedRows:
        return type(self)(Path(self.directory), self.mark)


class SqliteRows(Rows):
    def make(self) -> None:
        Path(self.path).unlink(missing_ok=True)
        with sqlite3.connect(self.path) as table:
            # Workers of the run before may read the file that was just unlinked, and SQLite finds journals by name.
            table.execute("pragma journal_mode = memory")
            table.execute("create table rows (id integer primary key, row blob)")
            table.executemany("insert into rows values (?, ?)", [(i, self.row(i)) for i in range(LENGTH)])

    def open(self) -> None:
        self.file = sqlite3.connect(self.path, check_same_thread=False)

    def read(self, index: int) -> bytes:
        return self.file.execute("select row from rows where id = ?", (index,)).fetchone()[0]


# --- random samples ---


class GlobalDraws(Part):
    random = True

    def __getitem__(self, index: int) -> int:
        return BASE * int(torch.randint(1 << 20, ())) + index


class NumpyDraws(GlobalDraws):
    def __getitem__(self, index: int) -> int:
        return BASE * int(np.random.randint(1 << 20)) + index


class PythonDraws(GlobalDraws):
    def __getitem__(self, index: int) -> int:
        return BASE * random.randrange(1 << 20) + index


class HeldDraws(GlobalDraws):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.generator = np.random.default_rng(5)

    def __getitem__(self, index: int) -> int:
        return BASE * int(self.generator.integers(1 << 20)) + index


# --- iterable datasets ---


class Stream(IterableDataset[Any]):
    """The numbers of its shard, and what the kind of state adds as the iteration begins."""

    def __init__(self, directory: Path, mark: int) -> None:
        self.directory = str(directory)
        self.mark = mark

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        state = self.state()
        for index in range(first, LENGTH, step):
            yield BASE * state + index

    def state(self) -> int:
        return 0

    def set(self, value: int) -> None:
        """Change what the next iteration reads."""

    def told(self) -> Any:
        """Return what the loop can find in this object after samples were made."""


class SharedValueStream(Stream):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.value = torch.zeros(1, dtype=torch.int64).share_memory_()

    state, set = SharedTensor.state, SharedTensor.set


class AttributeStream(Stream):
    level = 0
    state, set = Attribute.state, Attribute.set


class FileStream(Stream):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.path = os.path.join(self.directory, f"stream-{self.mark}")
        self.set(0)

    state, set = SmallFile.state, SmallFile.set


class EnvironmentStream(Stream):
    state, set = Environment.state, Environment.set


class PassesStream(Stream):
    """Counts its passes."""

    passes = 0

    def state(self) -> int:
        self.passes += 1
        return self.passes

    def told(self) -> Any:
        return self.passes


class LinesStream(Stream):
    """Reads lines from a file that it has open: a second pass finds what the first one has left."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.path = os.path.join(self.directory, f"lines-{self.mark}")
        Path(self.path).write_text("\n".join(map(str, range(LENGTH))))
        self.file = open(self.path)  # noqa: SIM115

    def __iter__(self) -> Any:
        self.file.seek(0)
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for number, line in enumerate(self.file):
            if number % step == first:
                yield int(line)


class StatefulStream(Stream):
    """Goes on where a state says."""

    at = 0

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        self.at, begin = 0, self.at
        for number, index in enumerate(range(first, LENGTH, step)):
            if number >= begin:
                self.at = number + 1
                yield index
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


MAPS = (
    Pure,
    SharedValue,
    SharedTensor,
    SharedArray,
    Attribute,
    ClassAttribute,
    Global,
    Environment,
    HiddenEnvironment,
    Array,
    SmallFile,
    IndexFile,
    MappedFile,
    Counter,
    ClassCounter,
    GlobalCounter,
    SharedCounter,
    Seen,
    Cache,
    PlainCache,
    Sobol,
    Gathered,
    Rows,
    UnbufferedRows,
    ReadWriteRows,
    DeletedRows,
    MemoryRows,
    TarRows,
    ZipRows,
    GzipRows,
    MappedRows,
    SqliteRows,
    GlobalDraws,
    NumpyDraws,
    PythonDraws,
    HeldDraws,
)
STREAMS = (
    Stream,
    SharedValueStream,
    AttributeStream,
    FileStream,
    EnvironmentStream,
    PassesStream,
    LinesStream,
    StatefulStream,
)
PARTS = {each.__name__: each for each in (*MAPS, *STREAMS)}


# --- functions ---


def summed(samples: list[int]) -> torch.Tensor:
    """A collate function without state."""
    return torch.tensor(samples) + 1000


class Collator:
    """A collate function that counts its batches."""

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, samples: list[int]) -> torch.Tensor:
        self.batches += 1
        return torch.tensor([self.batches, *samples])


def seed_worker(worker: int) -> None:
    """A worker_init_fn as in the documentation of PyTorch."""
    np.random.seed(torch.initial_seed() % 2**32)
    random.seed(worker)


class Backwards:
    """A sampler with its own state: it begins one later in each pass."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.passes = 0

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Any:
        self.passes += 1
        return iter([(index + self.passes) % self.length for index in reversed(range(self.length))])
