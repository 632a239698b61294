"""How much is lost when samples are tiny? 50,000 images of 32x32 in memory, RandomCrop, flip, normalise, batch 128.

python -m benchmarks.tiny [--rounds N]
"""

from __future__ import annotations

import argparse

import torch
from PIL import Image
from torch.utils.data import Dataset
from torchvision import transforms

from benchmarks.loading import compare

IMAGES = 50_000
BATCH = 128
BATCHES_A_ROUND = 390


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Holds images as torchvision's CIFAR10 does: an array of pixels, made an image and transformed at each access."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.pixels = torch.randint(0, 256, (IMAGES, 32, 32, 3), dtype=torch.uint8, generator=generator).numpy()
        self.labels = torch.randint(0, 10, (IMAGES,), generator=generator).tolist()
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
            ]
        )

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    to_reach: dict[str, float | None] = {"two bare loops": 0.95, "DataLoader": 1.0}
    compare("tiny", Images(), BATCH, BATCHES_A_ROUND, parser.parse_args().rounds, to_reach)


if __name__ == "__main__":
    main()
