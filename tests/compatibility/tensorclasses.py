"""A tensorclass; only where tensordict is installed."""

from __future__ import annotations

import torch
from tensordict import tensorclass


@tensorclass
class Scene:
    pixels: torch.Tensor
    labels: torch.Tensor
    name: str
