"""Images that are decoded and resized once: a sample cache, random transforms after it, normalising batch by batch.

    python -m examples.prepared_once IMAGES CACHE [--loader torch | --device DEVICE] [--epochs N]

IMAGES has a directory of images for each class. Without a DEVICE the workers crop, mirror and normalise. On a DEVICE
such as "cuda" bytes travel there, and all that is done there; "cpu" does the same in the trainer. This is what
tensordict's tutorial on memory-mapped, preprocessed images does: there a batch is gathered in the trainer, here it is
ready in shared memory.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from prefetchd_client import PrefetchLoader, SampleCache
from prefetchd_client.device.images import CropFlipNormalize
from torch.utils.data import DataLoader, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

SIDE, CROP, BATCH = 256, 224, 64
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
OFFSET = torch.tensor(MEAN).mul_(255).view(3, 1, 1)
SCALE = torch.tensor(STD).mul_(255).reciprocal_().view(3, 1, 1)

PREPARED = v2.Compose([v2.Resize((SIDE, SIDE)), v2.PILToTensor()])
RANDOM = v2.Compose([v2.RandomCrop(CROP), v2.RandomHorizontalFlip()])
CENTRE = v2.CenterCrop(CROP)


def images_of(root: Path) -> ImageFolder:
    """What is deterministic: each image as 3 x 256 x 256 bytes."""
    return ImageFolder(str(root), PREPARED)


def augmented(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """What is random: a crop, and perhaps its mirror image."""
    image, label = sample
    return RANDOM(image), label


def cropped(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """What validation looks at."""
    image, label = sample
    return CENTRE(image), label


def normalised(image: torch.Tensor) -> torch.Tensor:
    """Bytes of an image into what a network takes. v2.ToDtype and v2.Normalize take three times as long: they go over
    memory more often."""
    return torch.sub(image, OFFSET).mul_(SCALE)


def augmented_floats(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """What training takes where there is no GPU that normalises: the workers do it, not the trainer."""
    image, label = augmented(sample)
    return normalised(image), label


def cropped_floats(sample: tuple[torch.Tensor, int]) -> tuple[torch.Tensor, int]:
    """What validation takes there."""
    image, label = cropped(sample)
    return normalised(image), label


def on_device(device: str, flip: float) -> dict[str, Any]:
    """What a loader is told so that its batches come normalised. Of images that are cropped already this is all."""
    return {"device": device, "device_transform": CropFlipNormalize(CROP, mean=MEAN, std=STD, flip=flip)}


def made_loaders(images: Path, cache: Path, loader: str = "prefetchd", device: str | None = None) -> dict[str, Any]:
    """Training, and validation on every tenth image."""
    prepared = images_of(images)
    validation = range(0, len(prepared), 10)
    training = sorted(set(range(len(prepared))) - set(validation))
    if loader == "torch":
        from prefetchd_client.sample_cache import Transformed

        return {
            "train": DataLoader(
                Transformed(Subset(prepared, training), augmented_floats), BATCH, shuffle=True, num_workers=2
            ),
            "validation": DataLoader(Transformed(Subset(prepared, validation), cropped_floats), BATCH, num_workers=2),
        }
    cached = SampleCache(prepared, cache)
    random: dict[str, Any] = {"transform": augmented_floats} if device is None else on_device(device, flip=0.5)
    # Nothing in it is random: from the second epoch on its batches are those of the first, still in the buffer.
    fixed: dict[str, Any] = (
        {"transform": cropped_floats} if device is None else {"transform": cropped} | on_device(device, 0)
    )
    whole_epoch = -(-len(validation) // BATCH) + (4 if device is None else 8)
    return {
        "train": PrefetchLoader(Subset(cached, training), BATCH, shuffle=True, buffer=16, **random),
        "validation": PrefetchLoader(
            Subset(cached, validation), BATCH, deterministic=True, buffer=whole_epoch, **fixed
        ),
    }


def train(loaders: dict[str, Any], classes: int, epochs: int, device: str | None = None) -> float:
    """The share of the validation's images that come out right in the last epoch."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 7, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten()
    )
    model = torch.nn.Sequential(network, torch.nn.Linear(8 * 16, classes)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    share = 0.0
    for _ in range(epochs):
        for images, labels in loaders["train"]:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            right = [model(images).argmax(1) == labels for images, labels in loaders["validation"]]
        share = float(torch.cat(right).float().mean())
    return share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("images", type=Path, metavar="IMAGES")
    parser.add_argument("cache", type=Path, metavar="CACHE")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--loader", choices=["prefetchd", "torch"], default="prefetchd")
    which.add_argument("--device")
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    loaders = made_loaders(arguments.images, arguments.cache, arguments.loader, arguments.device)
    classes = len(images_of(arguments.images).classes)
    print(f"validation {train(loaders, classes, arguments.epochs, arguments.device):.3f}")


if __name__ == "__main__":
    main()
