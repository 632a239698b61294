"""Pictures that the tests of images decode, made here: no two pixels of a neighbourhood are alike, and edges are
sharp."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as v1

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN = v1.Compose(
    [v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.ToTensor(), v1.Normalize(MEAN, STD)],
)
TRAIN_BYTES = v1.Compose([v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.PILToTensor()])
VALIDATE_BYTES = v1.Compose([v1.Resize(80), v1.CenterCrop(64), v1.PILToTensor()])


def picture(width: int = 250, height: int = 187, seed: int = 0) -> Image.Image:
    """Waves of colour with a checkerboard and noise over it."""
    chance = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / (7 + 5 * c) + seed) + np.cos(y / (11 - 2 * c)) for c in range(3)]
    pixels = 128 + 50 * np.stack(waves, -1) + 30 * ((x // 16 + y // 16) % 2)[..., None]
    return Image.fromarray(np.clip(pixels + chance.normal(0, 8, pixels.shape), 0, 255).astype(np.uint8))


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **({"quality": 90} if kind == "JPEG" else {}) | options)
    return file.getvalue()


def by_torchvision(transform: Any, source: bytes) -> Any:
    """What torchvision's own loader and the transform make of it."""
    return transform(Image.open(io.BytesIO(source)).convert("RGB"))


def farthest(one: torch.Tensor, other: torch.Tensor) -> float:
    """The largest distance of two pixels, which are bytes."""
    assert one.dtype == other.dtype == torch.uint8
    assert one.shape == other.shape
    return float((one.int() - other.int()).abs().max())
