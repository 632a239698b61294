"""These networks are so small that loading their images is most of the work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SUBSAMPLING = 7
"""SmallNetwork looks at every seventh pixel of every seventh line: 32 x 32 of them."""
THUMBNAIL_SUBSAMPLING = 14


class SmallNetwork(nn.Module):
    """Takes 3 x 224 x 224 images, and returns one score for each class."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_stage(3, 16), *_stage(16, 32), *_stage(32, 32), nn.AdaptiveAvgPool2d(1))
        self.scores = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        small = images[:, :, ::SUBSAMPLING, ::SUBSAMPLING].contiguous()
        scores: Tensor = self.scores(torch.flatten(self.layers(small), 1))
        return scores


class ThumbnailNetwork(nn.Module):
    """Takes 3 x 224 x 224 images, and scores 16 x 16 pixels of each: next to no work, and yet its loss depends on
    every image."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.scores = nn.Linear(3 * 16 * 16, classes)

    def forward(self, images: Tensor) -> Tensor:
        thumbnails = images[:, :, ::THUMBNAIL_SUBSAMPLING, ::THUMBNAIL_SUBSAMPLING]
        scores: Tensor = self.scores(torch.flatten(thumbnails, 1))
        return scores


def _stage(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Returns layers that halve height and width."""
    return nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
