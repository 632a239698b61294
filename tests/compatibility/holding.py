"""Datasets by what they hold: locks, connections, shared memory, other datasets; and torchvision's own."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pathlib
import sqlite3
import threading
import zipfile
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, TensorDataset, random_split
from torch.utils.data.datapipes.map import SequenceWrapper

from tests.compatibility import material as m
from tests.compatibility.case import Loading, case, loading
from tests.compatibility.datasets import Bare, Holding, few, new_directory, picture


class Wrapper:
    """Has all that it does not have itself from another dataset."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


class Locked(Bare):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __getitem__(self, index: int) -> Any:
        with self.lock:
            return index

    def __getstate__(self) -> Any:
        return {}

    def __setstate__(self, state: Any) -> None:
        self.__init__()  # type: ignore[misc]


@dataclasses.dataclass(frozen=True)
class Frozen:
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return self.names[index]


class InDatabase(Bare):
    """Connects at the first item."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.connection: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.connection is None:
            self.connection = sqlite3.connect(self.path)
        return self.connection.execute("select name, size from pictures where number = ?", (index,)).fetchone()


class Zipped(Bare):
    """Opens the archive once in each process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.archives: dict[int, zipfile.ZipFile] = {}

    def __getitem__(self, index: int) -> Any:
        archive = self.archives.setdefault(os.getpid(), zipfile.ZipFile(self.path))
        return archive.read(f"{index}.txt").decode()


class Recursive(Bare):
    def __init__(self) -> None:
        self.itself = self


class NumpyLength(Bare):
    def __len__(self) -> int:
        return np.int64(5)  # type: ignore[return-value]


class WithValue(Bare):
    def __init__(self) -> None:
        self.value = multiprocessing.get_context("fork").Value("i", 5)

    def __getitem__(self, index: int) -> Any:
        return self.value.value + index


@case("datasets", workers=0)
def a_wrapper_that_delegates() -> Loading:
    return few(Wrapper(Holding(rows=list(range(10)))))


@case("datasets")
def a_lock_that_is_left_out() -> Loading:
    return few(Locked())


@case("datasets", workers=0)
def a_frozen_dataclass() -> Loading:
    return few(Frozen(tuple("abcdef")))


@case("datasets")
def a_database_that_is_opened_at_the_first_item() -> Loading:
    path = f"{new_directory()}/pictures.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table pictures (number, name, size)")
        connection.executemany("insert into pictures values (?, ?, ?)", [(k, f"p{k}", k / 2) for k in range(10)])
    connection.close()
    return few(InDatabase(path))


@case("datasets")
def an_archive_that_each_process_opens() -> Loading:
    path = f"{new_directory()}/texts.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for place in range(10):
            archive.writestr(f"{place}.txt", f"text {place}")
    return few(Zipped(path))


@case("datasets")
def a_value_that_processes_share() -> Loading:
    return few(WithValue())


@case("datasets", workers=0)
def a_tensor_in_shared_memory() -> Loading:
    return few(Holding(rows=torch.arange(40).reshape(10, 4).share_memory_()))


@case("datasets")
def a_module_as_transform() -> Loading:
    linear = torch.nn.Linear(6, 2).requires_grad_(False)
    torch.nn.init.constant_(linear.weight, 0.5)
    torch.nn.init.constant_(linear.bias, 2)
    return loading(m.Made(lambda index: linear(m.tensor(index).flatten())), batch_size=3)


@case("datasets", workers=0)
def a_dataset_that_holds_itself() -> Loading:
    return few(Recursive())


@case("datasets", workers=0)
def a_length_of_numpy() -> Loading:
    return few(NumpyLength())


@case("datasets", workers=0)
def datasets_that_were_added() -> Loading:
    return few(TensorDataset(torch.arange(4)) + TensorDataset(torch.arange(6) * 2))


@case("datasets", workers=0)
def concat_dataset_of_different_kinds() -> Loading:
    return few(ConcatDataset([[1, 2, 3], torch.arange(4), range(3)]), collate_fn=m.as_it_is)  # type: ignore[list-item]


@case("datasets", workers=0)
def concat_dataset_with_an_empty_one() -> Loading:
    return few(ConcatDataset([[1, 2], [], [3]]))  # type: ignore[list-item]


@case("datasets", workers=0)
def random_splits_by_number() -> Loading:
    return few(random_split(range(10), [7, 3], generator=torch.Generator().manual_seed(1))[1])  # type: ignore[arg-type]


@case("datasets", workers=0)
def a_map_data_pipe() -> Loading:
    return few(SequenceWrapper(list(range(10))).map(float).batch(2), batch_size=None)


@case("datasets", workers=0)
def a_structured_array() -> Loading:
    rows = [(place, place / 2, f"n{place}") for place in range(6)]
    return few(np.array(rows, [("a", "i4"), ("b", "f8"), ("c", "U4")]), collate_fn=m.as_it_is)


@case("datasets", workers=0)
def bytes_as_a_dataset() -> Loading:
    return few(b"abcdefg")


@case("datasets", workers=0)
def a_sparse_matrix_s_rows() -> Loading:
    dense = torch.arange(30.0).reshape(10, 3) * (torch.arange(30) % 4 == 0).reshape(10, 3)
    sparse = dense.to_sparse()
    return few(m.Made(lambda index: sparse[index].to_dense()))


# --- torchvision ---


@case("datasets", needs="torchvision")
def fake_data() -> Loading:
    from torchvision.datasets import FakeData
    from torchvision.transforms import v2

    return few(FakeData(10, (3, 8, 9), 4, transform=v2.PILToTensor()))


@case("datasets", needs="torchvision")
def dataset_folder_with_a_loader_of_one_s_own() -> Loading:
    from torchvision.datasets import DatasetFolder

    root = pathlib.Path(new_directory())
    for place in range(6):
        path = root / ("odd" if place % 2 else "even") / f"{place}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.full((2, 3), place))
    return few(DatasetFolder(str(root), np.load, extensions=(".npy",)))


@case("datasets", needs="torchvision")
def transforms_of_the_first_version() -> Loading:
    from torchvision import transforms

    steps = transforms.Compose(
        [transforms.Resize(12), transforms.CenterCrop(8), transforms.ToTensor(), transforms.Normalize([0.5], [0.2])]
    )
    return few(m.Made(lambda index: steps(picture(index))))


@case("datasets", needs="torchvision")
def transforms_with_a_lambda() -> Loading:
    from torchvision.transforms import v2

    steps = v2.Compose([v2.PILToTensor(), v2.Lambda(lambda image: image[:, :8, :8].flip(0))])
    return few(m.Made(lambda index: steps(picture(index))))


@case("datasets", needs="torchvision")
def segmentation_masks() -> Loading:
    from torchvision import tv_tensors as tv
    from torchvision.transforms import v2

    steps = v2.Compose([v2.ToImage(), v2.Resize((5, 4)), v2.RandomHorizontalFlip(p=1.0)])
    mask = torch.arange(72, dtype=torch.uint8).reshape(8, 9) % 5
    return few(m.Made(lambda index: steps(picture(index), tv.Mask(mask + index))))


@case("datasets", workers=0, needs="torchvision")
def the_pictures_of_a_video() -> Loading:
    from torchvision import tv_tensors as tv

    return few(m.Made(lambda index: tv.Video(torch.full((4, 3, 5, 6), index, dtype=torch.uint8))), batch_size=2)
