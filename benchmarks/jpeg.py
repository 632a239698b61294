"""How much is lost on the usual pipeline? JPEGs of 500x375, RandomResizedCrop, flip, ToTensor, Normalize, batch 64.

    python -m benchmarks.jpeg [--rounds N] [--uint8]

The demo's 2,000 pictures, over whole epochs. --uint8 leaves the pixels as they are: PILToTensor, no Normalize.
"""

from __future__ import annotations

import argparse

from prefetchd_demo.pictures import cached_pictures
from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.loading import WORKERS, compare

PICTURES = 2000
BATCH = 64
EPOCHS_A_ROUND = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uint8", action="store_true")
    arguments = parser.parse_args()
    directory = cached_pictures(PICTURES, WORKERS, lambda directory, so_far: None)
    steps = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip()]
    if arguments.uint8:
        steps.append(transforms.PILToTensor())
    else:
        steps += [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
    dataset = ImageFolder(str(directory), transforms.Compose(steps))
    batches = EPOCHS_A_ROUND * (len(dataset) // BATCH)
    title = "jpeg, uint8" if arguments.uint8 else "jpeg"
    compare(title, dataset, BATCH, batches, arguments.rounds, {"two bare loops": 0.95, "DataLoader": 1.0})


if __name__ == "__main__":
    main()
