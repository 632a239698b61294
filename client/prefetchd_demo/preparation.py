"""These transforms make training's images of files. They stand by themselves: what workers call decides whether a ring
may be used again, with all that its module imports."""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.transforms import (
    CenterCrop,
    Compose,
    ConvertImageDtype,
    Normalize,
    PILToTensor,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToTensor,
)

NORMALIZE = Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
RANDOM = Compose([RandomResizedCrop(224), RandomHorizontalFlip(), ToTensor(), NORMALIZE])
# Nothing is random in these, so that losses can be compared. RESIZED is what a sample cache does once.
RESIZED = Compose([Resize(256), CenterCrop(224), PILToTensor()])
FLOATS = Compose([ConvertImageDtype(torch.float32), NORMALIZE])
RESIZED_FLOATS = Compose([RESIZED, FLOATS])


def to_floats(sample: tuple[Tensor, int]) -> tuple[Tensor, int]:
    """Does with a cached sample what RESIZED_FLOATS would go on to do."""
    image, label = sample
    return FLOATS(image), label
