"""Pictures cost something: each sample is decoded from JPEG and augmented afresh."""

from __future__ import annotations

import io
import random

import numpy as np
import torch
from PIL import Image


class Pictures:
    """Has `length` samples (image, label), made from a few pictures of 500 x 375."""

    def __init__(self, length: int) -> None:
        self.length = length
        noise = np.random.RandomState(0)
        self.encoded = []
        for _ in range(8):
            small = Image.fromarray(noise.randint(0, 256, (24, 32, 3), dtype=np.uint8))
            target = io.BytesIO()
            small.resize((500, 375), Image.Resampling.BICUBIC).save(target, "JPEG", quality=90)
            self.encoded.append(target.getvalue())

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = Image.open(io.BytesIO(self.encoded[index % len(self.encoded)])).convert("RGB")
        side = random.randint(150, 375)
        left, top = random.randint(0, 500 - side), random.randint(0, 375 - side)
        image = image.resize((224, 224), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
        if random.random() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255)
        return pixels, index % 1000


def make(length: int) -> Pictures:
    """Makes the dataset; it is the factory that a declared stream names."""
    return Pictures(length)
