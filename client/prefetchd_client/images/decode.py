"""Decode is torchvision's transform of a picture, from the picture's file: it decodes what the transform needs.

The order of work on one picture:

1. Its header is read. What is no JPEG of 8 bits in colour or grey, or was cut short, is decoded by Pillow, and the
   transform is run as it stands.
2. The crop is chosen, by torchvision's own function.
3. That region alone is decoded, and resized. If it cannot be, Pillow decodes the picture, and the same crop is made.
4. All other steps run on the tensor.
"""

from __future__ import annotations

import io
import os
from typing import Any

import torch

try:
    from PIL import Image
    from torchvision import transforms as v1
    from torchvision.transforms import v2
except ImportError as error:
    raise ImportError(
        f'prefetchd_client.images works on torchvision\'s transforms, and {error}. Its extra "images" has both: '
        "pip install pillow torchvision"
    ) from error

from prefetchd_client.images.encoded import read_encoded
from prefetchd_client.images.geometry import Geometry, resize, take_geometry
from prefetchd_client.images.region_codec import codec_version, open_jpeg
from prefetchd_client.images.steps import on_tensor


class Decode:
    """Decode a picture as far as a torchvision transform needs it, and apply the transform.

    It is called with a path, bytes, or a tensor of bytes. It draws what torchvision draws from the same seed, and its
    pixels differ from torchvision's only by the rounding of resizing.

    Args:
        transform: A Compose or a single step, of torchvision.transforms or its v2, that begins with RandomResizedCrop,
            or with Resize, alone or before CenterCrop, bilinear or bicubic. Any steps may follow.
        exact: True decodes pictures whole, by Pillow, for any transform: torchvision's own pixels. Default: False.

    Raises:
        ValueError: The transform begins with another step.
        ImportError: The package for JPEGs is not installed.

    Example::

        dataset = ImageFolder(root, Decode(transform), loader=str)
    """

    def __init__(self, transform: Any, *, exact: bool = False) -> None:
        self.transform = transform
        self.exact = exact
        self._geometry: Geometry | None = None
        if exact:
            return
        steps = flattened(transform)
        self._geometry, self._others = take_geometry(steps)
        self._on_tensor = on_tensor(self._others)
        # Who lacks it is told now, not by a worker. Its version is part of what a fingerprint sees.
        self._codec_version = codec_version()

    def __call__(self, source: Any) -> Any:
        """Returns what `transform` makes of the picture. Raises what Pillow raises for files that it cannot decode."""
        geometry = self._geometry
        if geometry is None:
            return self.transform(decoded_by_pillow(source))
        encoded = read_encoded(source)
        jpeg = open_jpeg(encoded, Image.MAX_IMAGE_PIXELS or float("inf"))
        plan = geometry.plan(jpeg.height, jpeg.width) if jpeg is not None else None
        if jpeg is None or plan is None:
            return self.transform(decoded_by_pillow(source))
        pixels = jpeg.pixels(plan.region)
        if pixels is None:
            found: Any = geometry.on_picture(decoded_by_pillow(source), plan)
            steps = self._others
        else:
            found = resize(pixels, plan, geometry.interpolation)
            steps = self._on_tensor
        for step in steps:
            found = step(found)
        return found

    def __repr__(self) -> str:
        return f"Decode({self.transform!r}, exact={self.exact})"


def flattened(transform: Any) -> list[Any]:
    """Returns the steps of a transform in order, those of a Compose within it included."""
    if type(transform) in (v1.Compose, v2.Compose):
        return [step for part in transform.transforms for step in flattened(part)]
    if type(transform) is torch.nn.Sequential:
        return [step for part in transform for step in flattened(part)]
    return [transform]


def decoded_by_pillow(source: Any) -> Image.Image:
    """Decodes the whole picture as torchvision's default loader does: Pillow's image, in RGB. Raises OSError."""
    if isinstance(source, (str, os.PathLike)):
        # By its path: Pillow's errors name it.
        with open(source, "rb") as file:
            return Image.open(file).convert("RGB")
    return Image.open(io.BytesIO(bytes(read_encoded(source)))).convert("RGB")
