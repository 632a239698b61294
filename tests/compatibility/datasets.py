"""Datasets: whatever has a length and items."""

from __future__ import annotations

import array
import collections
import pathlib
import tempfile
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset, random_split

from tests.compatibility import material as m
from tests.compatibility.case import Loading, case, loading

EARLY = "PrefetchLoader asks for the length when it is made, so that it can begin to fill: its error comes at once"
EARLY_ERROR = r": .*Separate'> and CallerError\("


class Bare:
    """Not a Dataset, as most people write one."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return {"index": index, "pixels": np.full((2, 2), index, np.uint8)}


class Gathering(m.Made):
    """Makes a batch's samples at once; says how many were asked for."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(self.make(index), len(indices)) for index in indices]


class GatheringGenerator(m.Made):
    def __getitems__(self, indices: list[int]) -> Any:
        return (self.make(index) for index in indices)


class GatheringWhole(m.Made):
    """Gives a batch, not a list of samples; needs a collate_fn that leaves it alone."""

    def __getitems__(self, indices: list[int]) -> Any:
        return torch.tensor(indices) * 2


class GatheringNothing(m.Made):
    __getitems__ = None


class Holding(Dataset[Any]):
    """Item i is row i of what it holds."""

    def __init__(self, **held: Any) -> None:
        self.held = held

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return {name: value[index] for name, value in self.held.items()}


class Lazy(Dataset[Any]):
    """Opens its file at the first item, as h5py and lmdb want it."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.file: Any = None

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = self.path.open("rb")
        self.file.seek(index)
        return self.file.read(1)[0]

    def __getstate__(self) -> Any:
        return self.__dict__ | {"file": None}


class KindOfIndex(Bare):
    def __getitem__(self, index: Any) -> Any:
        return type(index).__name__, repr(index)


class LengthOnlyOnDemand(Bare):
    def __len__(self) -> int:
        raise NotImplementedError("the length is not known")


class Lengthless:
    def __getitem__(self, index: int) -> int:
        return index


class Itemless:
    def __len__(self) -> int:
        return 10


class Cached(Bare):
    @lru_cache(maxsize=4)  # noqa: B019 - what users do
    def __getitem__(self, index: int) -> Any:
        return torch.full((2,), index)


def few(dataset: Any, **arguments: Any) -> Loading:
    return loading(dataset, **({"batch_size": 3} | arguments))


@case("datasets")
def an_object_with_len_and_getitem() -> Loading:
    return few(Bare())


@case("datasets", workers=0)
def a_list() -> Loading:
    return few([{"x": place, "name": f"n{place}"} for place in range(10)])


@case("datasets", workers=0)
def a_tuple() -> Loading:
    return few(tuple(torch.arange(10).unbind()))


@case("datasets", workers=0)
def a_dict_with_integer_keys() -> Loading:
    return few({place: str(place) for place in range(10)})


@case("datasets", workers=0)
def a_range() -> Loading:
    return few(range(5, 25, 2))


@case("datasets", workers=0)
def a_string() -> Loading:
    return few("abcdefghij")


@case("datasets", workers=0)
def a_tensor() -> Loading:
    return few(torch.arange(30.0).reshape(10, 3))


@case("datasets", workers=0)
def an_array() -> Loading:
    return few(np.arange(30, dtype=np.int16).reshape(10, 3))


@case("datasets", workers=0)
def an_array_of_the_standard_library() -> Loading:
    return few(array.array("d", [1.5, 2.5, 3.5, 4.5]))


@case("datasets", workers=0)
def a_deque() -> Loading:
    return few(collections.deque(range(10)))


@case("datasets", workers=0)
def an_empty_list() -> Loading:
    return few([])


@case("datasets", workers=0)
def fewer_samples_than_a_batch() -> Loading:
    return few([1, 2], batch_size=5)


@case("datasets", workers=0)
def a_getitem_that_gets_python_integers() -> Loading:
    return few(KindOfIndex(), batch_size=2)


@case("datasets", workers=0)
def without_batching() -> Loading:
    return loading(Bare(), batch_size=None)


@case("datasets", workers=0)
def without_batching_and_with_collate_fn() -> Loading:
    return loading(Bare(), batch_size=None, collate_fn=partial(dict, more=1))


@case("datasets", workers=0)
def without_batching_of_batches() -> Loading:
    return loading(m.Made(lambda index: (torch.full((4, 2), index), [np.ones(3), "text", None])), batch_size=None)


@case("datasets")
def getitems() -> Loading:
    return few(Gathering(m.tensor))


@case("datasets", workers=0)
def getitems_that_is_a_generator() -> Loading:
    return few(GatheringGenerator(int), collate_fn=list)


@case("datasets", workers=0)
def getitems_that_gives_a_whole_batch() -> Loading:
    return few(GatheringWhole(int), collate_fn=m.as_it_is)


@case("datasets", workers=0)
def getitems_that_is_none() -> Loading:
    return few(GatheringNothing(m.tensor))


@case("datasets", workers=0)
def getitems_without_batching() -> Loading:
    return loading(Gathering(m.tensor), batch_size=None)


@case("datasets")
def concat_dataset() -> Loading:
    return few(ConcatDataset([Bare(), Bare()]))


@case("datasets")
def subset() -> Loading:
    return few(Subset(Bare(), [7, 1, 1, 3, 9]))


@case("datasets", workers=0)
def subset_with_numpy_indices() -> Loading:
    return few(Subset(KindOfIndex(), np.array([7, 1, 3])))  # type: ignore[arg-type]


@case("datasets", workers=0)
def subset_of_a_dataset_with_getitems() -> Loading:
    return few(Subset(Gathering(m.tensor), [7, 1, 3, 9]))


@case("datasets", workers=0)
def subset_of_a_subset_of_concatenated_ones() -> Loading:
    return few(Subset(Subset(ConcatDataset([Bare(), Bare()]), range(0, 20, 2)), [9, 0, 5]))


@case("datasets")
def random_splits() -> Loading:
    train, _ = random_split(Bare(), [0.7, 0.3], generator=torch.Generator().manual_seed(3))  # type: ignore[arg-type]
    return few(train)


@case("datasets")
def tensor_dataset() -> Loading:
    return few(TensorDataset(torch.arange(30.0).reshape(10, 3), torch.arange(10)))


@case("datasets", workers=0)
def stack_dataset() -> Loading:
    return few(StackDataset(image=Bare(), label=TensorDataset(torch.arange(10))))


@case("datasets", workers=0)
def stack_dataset_of_tuples() -> Loading:
    return few(StackDataset(Bare(), TensorDataset(torch.arange(10))))


@case("datasets")
def tensors_of_many_megabytes() -> Loading:
    images = torch.arange(10 * 3 * 256 * 256, dtype=torch.float32).reshape(10, 3, 256, 256)
    return few(Holding(images=images, part=images[:, 0, :4, :4], turned=images.permute(0, 2, 3, 1)))


@case("datasets")
def arrays_of_many_megabytes() -> Loading:
    images = np.arange(10 * 256 * 256 * 3, dtype=np.uint8).reshape(10, 256, 256, 3)
    return few(
        Holding(images=images, turned=images.transpose(0, 3, 1, 2), texts=np.array([f"name {k}" for k in range(10)]))
    )


@case("datasets")
def a_mapped_file() -> Loading:
    path = pathlib.Path(new_directory()) / "mapped"
    written = np.memmap(path, np.int32, "w+", shape=(10, 5000))
    written[:] = np.arange(50000).reshape(10, 5000)
    written.flush()
    return few(Holding(rows=np.memmap(path, np.int32, "r", shape=(10, 5000))))


@case("datasets")
def a_list_of_a_hundred_thousand_paths() -> Loading:
    return few(Holding(paths=[f"/data/train/{place // 1000:04}/{place:08}.jpg" for place in range(100_000)]))


@case("datasets")
def a_file_that_is_opened_at_the_first_item() -> Loading:
    path = pathlib.Path(new_directory()) / "bytes"
    path.write_bytes(bytes(range(10)))
    return few(Lazy(path))


@case("datasets", workers=0)
def a_cached_getitem() -> Loading:
    return few(Cached())


@case("datasets", workers=0)
def partial_functions_lambdas_and_closures() -> Loading:
    factor = 3
    return few(m.Made(partial(lambda index, by: index * by, by=factor)), collate_fn=lambda samples: (factor, samples))


@case("datasets", workers=0)
def a_dataset_of_a_local_class() -> Loading:
    class Local(Bare):
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)["index"] + 1

    return few(Local())


@case("datasets")
def a_dataset_of_the_script() -> Loading:
    return few(m.main().MainDataset())


@case("datasets", workers=0)
def a_script_s_dataset_inside_others() -> Loading:
    return few(ConcatDataset([Subset(m.main().MainDataset(), [3, 4]), m.main().MainDataset()]))


@case("datasets")
def a_module_s_variable_that_was_changed() -> Loading:
    m.Bag.changed_by_the_program = True  # type: ignore[attr-defined]
    return few(m.Made(_changed_by_the_program))


@case("datasets", needs="torchvision")
def image_folder() -> Loading:
    from torchvision.datasets import ImageFolder
    from torchvision.transforms import v2

    root = pathlib.Path(new_directory())
    for place in range(6):
        _picture(root / ("cat" if place % 2 else "dog") / f"{place}.png", place)
    steps = v2.Compose([v2.ToImage(), v2.Resize((5, 4)), v2.ToDtype(torch.float32, scale=True)])
    return few(ImageFolder(str(root), transform=steps))


@case("datasets", needs="torchvision")
def cifar10() -> Loading:
    from torchvision.datasets import CIFAR10
    from torchvision.transforms import v2

    # Without a download, and with its own code for samples.
    dataset = CIFAR10.__new__(CIFAR10)
    dataset.transform, dataset.target_transform = v2.PILToTensor(), None
    dataset.data = np.arange(10 * 32 * 32 * 3, dtype=np.uint8).reshape(10, 32, 32, 3)
    dataset.targets = list(range(10))
    return few(dataset)


@case("datasets", needs="torchvision")
def voc_detection_with_a_filter() -> Loading:
    from torchvision.datasets import VOCDetection

    root = pathlib.Path(new_directory())
    base = root / "VOCdevkit" / "VOC2012"
    (base / "ImageSets" / "Main").mkdir(parents=True)
    (base / "ImageSets" / "Main" / "train.txt").write_text("\n".join(f"p{place}" for place in range(6)))
    (base / "Annotations").mkdir()
    for place in range(6):
        _picture(base / "JPEGImages" / f"p{place}.jpg", place)
        boxes = "".join(f"<object><name>dog</name><xmin>{k}</xmin></object>" for k in range(place % 3))
        text = f"<annotation><filename>p{place}.jpg</filename>{boxes}</annotation>"
        (base / "Annotations" / f"p{place}.xml").write_text(text)
    dataset = VOCDetection(str(root), year="2012", image_set="train")
    with_dogs = [place for place in range(len(dataset)) if "object" in dataset[place][1]["annotation"]]
    return few(Subset(dataset, with_dogs), batch_size=2, collate_fn=m.as_it_is)


@case("datasets", needs="torchvision")
def transforms_of_tv_tensors() -> Loading:
    from torchvision import tv_tensors as tv
    from torchvision.transforms import v2

    steps = v2.Compose([v2.RandomHorizontalFlip(p=1.0), v2.ClampBoundingBoxes()])

    def make(index: int) -> Any:
        boxes = tv.BoundingBoxes(torch.tensor([[0, 0, 1, 2 + index]]), format="XYXY", canvas_size=(8, 9))
        return steps({"image": tv.Image(torch.arange(144, dtype=torch.uint8).reshape(2, 8, 9)), "boxes": boxes})

    return few(m.Made(make), collate_fn=m.as_it_is)


@case("datasets", workers=0, reason=EARLY, difference=EARLY_ERROR + r"'dataset Lengthless has no len\(\)'\)")
def no_length() -> Loading:
    return few(Lengthless())


@case("datasets", workers=0, reason=EARLY, difference=EARLY_ERROR + r".length is -1; .*")
def a_length_that_raises() -> Loading:
    return few(LengthOnlyOnDemand())


@case("datasets", workers=0)
def no_items() -> Loading:
    return few(Itemless())


@case("datasets", workers=0, reason=EARLY, difference=EARLY_ERROR + r"'dataset NoneType has no len\(\)'\)")
def no_dataset() -> Loading:
    return few(None)


def _changed_by_the_program(index: int) -> bool:
    return hasattr(m.Bag, "changed_by_the_program")


_directories: list[Any] = []


def new_directory() -> str:
    """One that lasts as long as the run."""
    _directories.append(tempfile.TemporaryDirectory())
    return str(_directories[-1].name)


def picture(number: int) -> Any:
    from PIL import Image

    return Image.fromarray(np.full((16, 17 + number, 3), number * 9, np.uint8))


def _picture(path: pathlib.Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(number).save(path)
