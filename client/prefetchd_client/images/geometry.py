"""This module plans which region of a picture a transform needs, and how that region is resized.

Rectangles are torchvision's: its own function draws them, from torch's global generator. Resizing is torch's, with
antialiasing, on bytes: a step of 255 here and there from Pillow's, which torchvision uses for pictures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from PIL import Image
from torch.nn.functional import interpolate
from torchvision import transforms as v1
from torchvision.transforms import functional, v2

from prefetchd_client.images.region_codec import Region

REACH = {"bilinear": 1, "bicubic": 2}
"""How far each filter reaches, in pixels of the smaller of its two pictures."""

_BLANK = torch.empty(1, 1, 1, dtype=torch.uint8)


class Plan(NamedTuple):
    """What to decode of one picture. `size` (height, width) is the region's after resizing, `scale` how many of its
    pixels become one when that is not by the sizes alone, `cut` what is cut out in the end."""

    region: Region
    size: tuple[int, int]
    scale: tuple[float, float] | None = None
    cut: Region | None = None


class Geometry(Protocol):
    """The first steps of a transform: those that choose the region."""

    interpolation: str

    def plan(self, height: int, width: int) -> Plan | None:
        """Plans for a picture of this size, and draws what is random. None, without a draw: these steps are to be run
        as they are."""

    def on_picture(self, picture: Image.Image, plan: Plan) -> Image.Image:
        """Does to the whole picture, as torchvision does, what `plan` says."""


class CropAndResize:
    """RandomResizedCrop."""

    def __init__(self, step: Any) -> None:
        self.interpolation = interpolation_of(step)
        self._mode = step.interpolation
        self._size: list[int] = list(step.size)
        self._scale, self._ratio = step.scale, step.ratio

    def plan(self, height: int, width: int) -> Plan:
        rectangle = v1.RandomResizedCrop.get_params(_BLANK.expand(3, height, width), self._scale, self._ratio)
        return Plan(Region(*rectangle), (self._size[0], self._size[1]))

    def on_picture(self, picture: Image.Image, plan: Plan) -> Image.Image:
        at = plan.region
        found: Image.Image = functional.resized_crop(
            picture, at.top, at.left, at.height, at.width, self._size, self._mode
        )
        return found


class ResizeAndCrop:
    """Resize, alone or before CenterCrop."""

    def __init__(self, step: Any, center: Any | None) -> None:
        self.interpolation = interpolation_of(step)
        self._steps = [step] if center is None else [step, center]
        self._size = [step.size] if isinstance(step.size, int) else step.size
        self._max_size: int | None = step.max_size
        self._cut: tuple[int, int] | None = None
        if center is not None:
            size = center.size
            self._cut = (size, size) if isinstance(size, int) else (size[0], size[-1])

    def plan(self, height: int, width: int) -> Plan | None:
        size = resized(height, width, self._size, self._max_size)
        whole = Region(0, 0, height, width)
        if self._cut is None:
            return Plan(whole, size)
        room = [have - want for have, want in zip(size, self._cut)]
        if min(room) < 0:
            return None
        top, left = (round(pixels / 2.0) for pixels in room)
        cut = Region(top, left, *self._cut)
        # From the corner on, so that pixels fall where they do in the whole picture. What lies right of the crop and
        # below it is left out; rows below it are not even read.
        scale = (height / size[0], width / size[1])
        reach = REACH[self.interpolation]
        ends = []
        for first, count, ratio, have in zip((top, left), self._cut, scale, (height, width)):
            ends.append(min(have, math.ceil((first + count) * ratio + reach * max(ratio, 1.0)) + 1))
        made = tuple(math.floor(end * (1 / ratio)) for end, ratio in zip(ends, scale))
        if made[0] < top + cut.height or made[1] < left + cut.width:
            return Plan(whole, size, None, cut)
        return Plan(Region(0, 0, *ends), (made[0], made[1]), scale, cut)

    def on_picture(self, picture: Image.Image, plan: Plan) -> Image.Image:
        for step in self._steps:
            picture = step(picture)
        return picture


def resized(height: int, width: int, size: Sequence[int] | None, max_size: int | None) -> tuple[int, int]:
    """Computes what torchvision's Resize makes of a height and width."""
    short, long = sorted((height, width))
    if size is not None and len(size) == 2:
        return size[0], size[1]
    if size is None:
        assert max_size is not None
        short, long = int(max_size * short / long), max_size
    else:
        short, long = size[0], int(size[0] * long / short)
        if max_size is not None and long > max_size:
            short, long = int(max_size * short / long), max_size
    return (long, short) if width <= height else (short, long)


def resize(pixels: torch.Tensor, plan: Plan, interpolation: str) -> torch.Tensor:
    """Resizes and cuts height x width x 3 bytes as planned, to 3 x height x width."""
    planes = pixels.permute(2, 0, 1)[None]
    if not pixels.is_cpu:
        # Torch resizes bytes on the CPU alone.
        planes = planes.float()
    if plan.scale is None:
        found = interpolate(planes, plan.size, mode=interpolation, antialias=True)[0]
    else:
        factors = (1 / plan.scale[0], 1 / plan.scale[1])
        found = interpolate(planes, scale_factor=factors, mode=interpolation, antialias=True)[0]
    if (cut := plan.cut) is not None:
        found = found[:, cut.top : cut.top + cut.height, cut.left : cut.left + cut.width]
    return found if pixels.is_cpu else found.round().clamp(0, 255).byte()


def interpolation_of(step: Any) -> str:
    """Returns the name of a step's interpolation. Raises ValueError for one that torch does not have for bytes."""
    name: str = getattr(step.interpolation, "value", step.interpolation)
    if name not in REACH:
        raise ValueError(
            f"{type(step).__name__} has interpolation {name!r}; allowed: 'bilinear' and 'bicubic'. "
            "Decode(..., exact=True) takes every other"
        )
    return name


def take_geometry(steps: list[Any]) -> tuple[Geometry, list[Any]]:
    """Splits a transform's steps into those that choose the region and all others. Raises ValueError when it does not
    begin with such a step."""
    first = steps[0] if steps else None
    if type(first) in (v1.RandomResizedCrop, v2.RandomResizedCrop):
        return CropAndResize(first), steps[1:]
    if type(first) in (v1.Resize, v2.Resize):
        center = steps[1] if len(steps) > 1 and type(steps[1]) in (v1.CenterCrop, v2.CenterCrop) else None
        return ResizeAndCrop(first, center), steps[2 if center is not None else 1 :]
    raise ValueError(
        f"the transform begins with {first!r}; allowed: torchvision's RandomResizedCrop, or its Resize, alone or "
        "before CenterCrop. Another one needs the whole picture, decoded as torchvision does: Decode(..., exact=True)"
    )
