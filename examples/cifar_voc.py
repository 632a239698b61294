"""CIFAR-10, and the objects of a VOC detection set that CIFAR-10 has classes for, with torchvision's v2 transforms.

    python -m examples.cifar_voc [--loader torch] [--cifar DIR] [--voc DIR] [--epochs N]

Without --cifar the images are torchvision's FakeData, in CIFAR-10's size.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset
from torchvision.datasets import CIFAR10, FakeData, VOCDetection
from torchvision.transforms import v2

LOADERS: dict[str, type[DataLoader[Any]]] = {"prefetchd": PrefetchLoader, "torch": DataLoader}
NORMALIZE = v2.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
TRAINING = v2.Compose(
    [
        v2.RandomCrop(32, padding=4),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        NORMALIZE,
    ]
)
EVALUATION = v2.Compose([v2.Resize((32, 32)), v2.ToImage(), v2.ToDtype(torch.float32, scale=True), NORMALIZE])

# What VOC calls what CIFAR-10 knows; its frogs and deer VOC has not.
CIFAR_NAMES = {
    "aeroplane": "airplane",
    "bird": "bird",
    "boat": "ship",
    "car": "automobile",
    "cat": "cat",
    "dog": "dog",
    "horse": "horse",
    "bus": "truck",
}


class VocAsCifar(Dataset[tuple[torch.Tensor, str]]):
    """The first object of each picture that CIFAR-10 has a class for, cut out: (image, name of the class)."""

    def __init__(self, root: str | Path, image_set: str = "train", year: str = "2012") -> None:
        self.pictures = VOCDetection(str(root), year=year, image_set=image_set)
        self.found = []
        for number in range(len(self.pictures)):
            annotation = self.pictures.parse_voc_xml(ET.parse(self.pictures.annotations[number]).getroot())[
                "annotation"
            ]
            known = [each for each in annotation["object"] if each["name"] in CIFAR_NAMES]
            if known:
                box = tuple(int(float(known[0]["bndbox"][side])) for side in ("xmin", "ymin", "xmax", "ymax"))
                self.found.append((number, box, CIFAR_NAMES[known[0]["name"]]))

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, str]:
        number, box, name = self.found[index]
        picture, _ = self.pictures[number]
        return EVALUATION(picture.crop(box)), name


def images(directory: str | None, *, train: bool, transform: Any) -> Dataset[Any]:
    if directory is not None:
        return CIFAR10(directory, train=train, transform=transform)
    return FakeData(256 if train else 64, (3, 32, 32), 10, transform, random_offset=0 if train else 1000)


def made_loaders(
    loader: type[DataLoader[Any]], cifar: str | None = None, voc: str | Path | None = None
) -> dict[str, DataLoader[Any]]:
    """A dataset must not move tensors to a device: the loop does."""
    shuffled = {"shuffle": True, "generator": torch.Generator().manual_seed(1)}
    # Pinned memory is for GPUs.
    common = {"batch_size": 16, "num_workers": 2, "pin_memory": torch.cuda.is_available()}
    made = {
        "training": loader(images(cifar, train=True, transform=TRAINING), **common, **shuffled),
        "evaluation": loader(images(cifar, train=False, transform=EVALUATION), **common),
    }
    if voc is not None:
        made["voc"] = loader(VocAsCifar(voc), **common)
    return made


def train(loaders: dict[str, DataLoader[Any]], epochs: int) -> float:
    """The last training loss."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.LazyLinear(10)]
    model = torch.nn.Sequential(*layers).to(device)
    model(torch.zeros(1, 3, 32, 32, device=device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss = torch.zeros(())
    for _ in range(epochs):
        for pictures, labels in loaders["training"]:
            pictures = pictures.to(device, non_blocking=True)
            loss = torch.nn.functional.cross_entropy(model(pictures), labels.to(device, non_blocking=True))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = sum(int((model(p.to(device)).argmax(1).cpu() == t).sum()) for p, t in loaders["evaluation"])
        print(f"loss {float(loss):.4f}, right {right}")
    return float(loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--loader", choices=LOADERS, default="prefetchd")
    parser.add_argument("--cifar", metavar="DIR", help="where torchvision's CIFAR10 is")
    parser.add_argument("--voc", metavar="DIR", help="where VOCdevkit is")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    loaders = made_loaders(LOADERS[arguments.loader], arguments.cifar, arguments.voc)
    train(loaders, arguments.epochs)
    if "voc" in loaders:
        print("objects of VOC:", sorted({name for _, names in loaders["voc"] for name in names}))


if __name__ == "__main__":
    main()
