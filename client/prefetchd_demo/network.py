"""SmallNetwork is so small that loading its images is most of the work."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SUBSAMPLING = 7
"""The network looks at every seventh pixel of every seventh line: 32 x 32 of them."""


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


def _stage(inputs: int, outputs: int) -> tuple[nn.Module, ...]:
    """Returns layers that halve height and width."""
    return nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
