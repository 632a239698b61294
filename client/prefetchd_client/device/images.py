"""CropFlipNormalize crops, flips and normalises whole batches of pictures, with draws of each picture's own: bytes
travel to the device, floats are made there. (torchvision's v2 transforms draw once for a whole batch.)"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch


@dataclasses.dataclass(frozen=True)
class Draws:
    """Holds one entry for each picture: where its crop begins in the padded picture, and whether it is mirrored."""

    tops: torch.Tensor
    lefts: torch.Tensor
    flips: torch.Tensor


class CropFlipNormalize(torch.nn.Module):
    """Crop, flip and normalize a batch of pictures on their device: a device_transform.

    It takes uint8 pictures N x C x H x W, or a batch that has them at `key`. Random numbers come from the global
    generator of the pictures' device, so they are the same for the same seed.

    Args:
        size: Pixels of the crop, as one number or (height, width).
        mean: The mean to subtract from x / 255, for each channel.
        std: The standard deviation to divide by, for each channel.
        padding: Black pixels around the picture before the crop. Default: 0.
        flip: The probability of mirroring left to right. Default: 0.5.
        key: The pictures' place in a batch that is a list, tuple or mapping. Default: 0.
        dtype: The result's dtype. Default: torch.float32.
        memory_format: The result's memory format. Default: torch.contiguous_format.

    Example::

        crop = CropFlipNormalize(224, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
        loader = PrefetchLoader(dataset, batch_size=256, device="cuda", device_transform=crop)
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(
        self,
        size: int | tuple[int, int],
        *,
        mean: Sequence[float],
        std: Sequence[float],
        padding: int = 0,
        flip: float = 0.5,
        key: Any = 0,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        super().__init__()
        self.size = (size, size) if isinstance(size, int) else size
        self.padding, self.flip, self.key = padding, flip, key
        self.dtype, self.memory_format = dtype, memory_format
        means, stds = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
        self.register_buffer("scale", (1 / (255 * stds)).float().view(1, -1, 1, 1), persistent=False)
        self.register_buffer("shift", (-means / stds).float().view(1, -1, 1, 1), persistent=False)

    def forward(self, batch: Any) -> Any:
        """Returns the batch, with its pictures transformed. Raises ValueError when there are none that fit."""
        if isinstance(batch, torch.Tensor):
            return self.applied(batch, self.draw(batch))
        pictures = batch[self.key]
        done = self.applied(pictures, self.draw(pictures))
        if isinstance(batch, Mapping):
            return {**batch, self.key: done}
        parts = [*batch]
        parts[self.key] = done
        if isinstance(batch, tuple):
            return type(batch)(*parts) if hasattr(batch, "_fields") else tuple(parts)
        return parts

    def draw(self, pictures: torch.Tensor) -> Draws:
        """Draws crop and flip for each picture. Raises ValueError when the pictures do not fit."""
        if pictures.dtype != torch.uint8 or pictures.dim() != 4:
            raise ValueError(
                f"pictures are {pictures.dtype} in {pictures.dim()} dimensions; allowed: uint8, N x C x H x W"
            )
        count, device = len(pictures), pictures.device
        room = [have + 2 * self.padding - want for have, want in zip(pictures.shape[2:], self.size)]
        if min(room) < 0:
            raise ValueError(f"pictures of {tuple(pictures.shape[2:])} are smaller than crops of {self.size}")
        tops, lefts = (torch.randint(most + 1, (count,), device=device) for most in room)
        return Draws(tops, lefts, torch.rand(count, device=device) < self.flip)

    def applied(self, pictures: torch.Tensor, draws: Draws) -> torch.Tensor:
        """Returns the pictures after these draws."""
        (height, width), device = self.size, pictures.device
        rows = draws.tops[:, None] + torch.arange(height, device=device) - self.padding
        places = torch.arange(width, device=device)
        places = torch.where(draws.flips[:, None], width - 1 - places, places)
        columns = draws.lefts[:, None] + places - self.padding
        # Gathered by index: no padded copy of the batch is made. What lies in the padding is read clamped, and
        # blackened after.
        rows_in, columns_in = ((at >= 0) & (at < have) for at, have in zip((rows, columns), pictures.shape[2:]))
        found = pictures[
            torch.arange(len(pictures), device=device)[:, None, None, None],
            torch.arange(pictures.shape[1], device=device)[:, None, None],
            rows.clamp(0, pictures.shape[2] - 1)[:, None, :, None],
            columns.clamp(0, pictures.shape[3] - 1)[:, None, None, :],
        ]
        if self.padding:
            found = found * (rows_in[:, None, :, None] & columns_in[:, None, None, :])
        normal = found.float() * self.scale + self.shift
        return normal.to(self.dtype, memory_format=self.memory_format)
