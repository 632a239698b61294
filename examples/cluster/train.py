"""Reads batches that cost CPU time to make, with workers here and on other machines, and prints how many come a second.

python train.py [--remote-workers N] [--batches N]
"""

from __future__ import annotations

import argparse
import time

import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import Dataset

SIDE, BATCH, EPOCHS = 224, 32, 100


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Makes pictures from noise, by filters that take some 10 ms of CPU time: the place of decoding and augmenting."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        picture = torch.rand(1, 3, SIDE, SIDE, generator=generator)
        for _ in range(2):
            picture = torch.nn.functional.avg_pool2d(picture, 5, stride=1, padding=2)
        low, high = picture.min(), picture.max()
        return ((picture[0] - low) / (high - low) * 255).to(torch.uint8), index % 10


def main() -> None:
    """Reads so many batches, and prints the rate of each ten seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--remote-workers", type=int, default=4)
    parser.add_argument("--batches", type=int, default=2000)
    given = parser.parse_args()
    loader = PrefetchLoader(
        Pictures(100_000),
        batch_size=BATCH,
        shuffle=True,
        num_workers=2,
        remote_workers=given.remote_workers,
        seed=0,
        stream="train",
    )
    read, last, began = 0, 0, time.monotonic()
    told = began
    with loader:
        for _ in range(EPOCHS):
            for images, labels in loader:
                # Here would be the step of your training.
                assert images.shape[0] == labels.shape[0]
                read += 1
                now = time.monotonic()
                if now - told >= 10.0 or read == given.batches:
                    print(f"{read} batches, {(read - last) / (now - told):.1f} batches/s", flush=True)
                    last, told = read, now
                if read == given.batches:
                    print(f"on average {read / (now - began):.1f} batches/s", flush=True)
                    return


if __name__ == "__main__":
    main()
