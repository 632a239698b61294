"""This module runs the steps after the crop on a tensor of bytes, where torchvision would run them on a Pillow image.

What torchvision's own step does to a tensor, that step does. Those that need a picture are done here: they draw, and
compute, as torchvision's do, so that equal pixels give equal results, to the last bit of a float.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from PIL import Image
from torchvision import transforms as v1
from torchvision import tv_tensors
from torchvision.transforms import v2

from prefetchd_client.dense import dense

Step: TypeAlias = Callable[[Any], Any]

FLIPS = (v1.RandomHorizontalFlip, v2.RandomHorizontalFlip)
TO_FLOATS = (v1.ToTensor, v2.ToTensor)
TO_BYTES = (v1.PILToTensor, v2.PILToTensor)
NORMALIZE = (v1.Normalize, v2.Normalize)


class Flip:
    """RandomHorizontalFlip."""

    def __init__(self, probability: float) -> None:
        self._probability = probability

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.flip(-1) if torch.rand(1) < self._probability else pixels


class Divide:
    """ToTensor: numbers from 0 to 1, of torch's default dtype."""

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.to(torch.get_default_dtype()).div_(255)


class Scale:
    """v2.ToDtype(float, scale=True), without its search for pictures."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        return v2.functional.to_dtype_image(pixels, self._dtype, scale=True)  # type: ignore[no-any-return]


class NormalizeInPlace:
    """Normalize, of numbers that the step before has just made."""

    def __init__(self, step: Any) -> None:
        # In Python's precision: each dtype is to get what it rounds to.
        self._mean, self._std = (
            torch.tensor(list(part), dtype=torch.float64).view(-1, 1, 1) for part in (step.mean, step.std)
        )

    def __call__(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.sub_(self._mean.to(numbers)).div_(self._std.to(numbers))


class Marked:
    """v2.ToImage: the tensor is marked as a picture, for the steps that come."""

    def __call__(self, pixels: torch.Tensor) -> Any:
        return tv_tensors.Image(pixels)


class AsPicture:
    """What needs a Pillow image gets one."""

    def __call__(self, pixels: torch.Tensor) -> Image.Image:
        return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def on_tensor(steps: list[Any]) -> list[Step]:
    """Returns steps that do to 3 x height x width bytes what `steps` do to a picture.

    Where these make a tensor of it, planes come first, as torchvision's result has them: all that follows is faster so.
    """
    flips: list[Step] = []
    left = list(steps)
    while left and type(left[0]) in FLIPS:
        flips.append(Flip(left.pop(0).p))
    first = type(left[0]) if left else None
    if first in TO_FLOATS:
        return [dense, *flips, Divide(), *_normalized(left[1:])]
    if first in TO_BYTES:
        floats, left = _floats(left[1:])
        return [dense, *flips, *floats, *left]
    if first is v2.ToImage:
        floats, left = _floats(left[1:])
        if left and type(left[0]) is v2.ToPureTensor:
            return [dense, *flips, *floats, *left[1:]]
        return [dense, *flips, *floats, Marked(), *left]
    return [*flips, AsPicture(), *left]


def _floats(left: list[Any]) -> tuple[list[Step], list[Any]]:
    """Splits off what makes floats of bytes, and normalises them: none, or what does so on a plain tensor."""
    first: Any = left[0] if left else None
    if type(first) is v2.ToDtype and first.scale and _is_float(first.dtype):
        convert: Step = Scale(first.dtype)
    elif type(first) is v1.ConvertImageDtype and _is_float(first.dtype):
        convert = first
    else:
        return [], left
    left = _normalized(left[1:])
    normalizes = bool(left) and type(left[0]) is NormalizeInPlace
    return [convert, *left[:normalizes]], left[normalizes:]


def _normalized(left: list[Any]) -> list[Any]:
    """Replaces a Normalize that comes first and has three means and deviations. Any other may raise what it raises."""
    if left and type(left[0]) in NORMALIZE:
        mean, std = left[0].mean, left[0].std
        if all(isinstance(part, (list, tuple)) and len(part) == 3 for part in (mean, std)) and all(std):
            return [NormalizeInPlace(left[0]), *left[1:]]
    return left


def _is_float(dtype: Any) -> bool:
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point
