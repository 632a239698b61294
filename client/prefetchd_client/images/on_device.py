"""This module leaves decoding to the device: batches hold files, and `device_transform` makes pictures of them.

Workers read the files (`encoded_picture`), a batch keeps them as tensors of unequal length (`collate_encoded`), and
`DecodeOnDevice` has nvJPEG decode the regions of a whole batch at once. For machines whose CPUs are the limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import default_collate
from torchvision.transforms import functional

from prefetchd_client.images.decode import decoded_by_pillow, flattened
from prefetchd_client.images.encoded import read_encoded
from prefetchd_client.images.geometry import Plan, resize, take_geometry
from prefetchd_client.images.region_codec import Jpeg, Region, codec_version, decode_regions, open_jpeg
from prefetchd_client.images.steps import AsPicture, on_tensor


class EncodedPictures(Sequence[torch.Tensor]):
    """Hold the pictures of a batch: files as tensors of one dimension, decoded pictures as tensors of three.

    They stay in the CPU's memory when the batch is moved, because a GPU's decoder reads files there, too.
    """

    def __init__(self, pictures: list[torch.Tensor]) -> None:
        self.pictures = pictures

    def to(self, *where: Any, **how: Any) -> EncodedPictures:
        """Returns itself, wherever the batch goes."""
        return self

    def pin_memory(self, device: Any = None) -> EncodedPictures:
        """Returns itself: no device copies these."""
        return self

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: Any) -> Any:
        return self.pictures[index]

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self.pictures)


def encoded_picture(source: Any) -> torch.Tensor:
    """Return the file of a JPEG of 8 bits as a tensor of bytes, and any other picture as height x width x 3 pixels.

    It is the transform of a dataset whose samples are paths or bytes. Raises what Pillow raises for files that it
    cannot decode, and for files that were cut short.

    Args:
        source: A path, bytes, or a tensor of bytes.
    """
    encoded = read_encoded(source)
    if open_jpeg(encoded, Image.MAX_IMAGE_PIXELS or float("inf")) is None:
        return _pixels_of(decoded_by_pillow(source))
    return torch.from_numpy(np.frombuffer(encoded, np.uint8).copy())


def collate_encoded(samples: list[Any]) -> Any:
    """Collate samples that begin with a picture of encoded_picture() into EncodedPictures.

    The samples' other parts are collated by torch's default_collate.
    """
    pictures, *others = zip(*samples)
    return EncodedPictures(list(pictures)), *(default_collate(list(other)) for other in others)


class DecodeOnDevice:
    """Decode a batch's EncodedPictures on a device, and apply a torchvision transform to each: a device_transform.

    The pictures are stacked, as the first part of the batch. Pictures that the device's decoder refuses are decoded on
    the CPU.

    Args:
        transform: A transform that Decode takes. Its steps after the crop and the flip take tensors, and make them of
            equal shape.
        device: The device. Default: "cuda".

    Raises:
        ValueError: Decode does not take the transform, or a step needs a Pillow image.
        ImportError: The package for JPEGs is not installed.

    Example::

        loader = PrefetchLoader(
            ImageFolder(root, encoded_picture, loader=str), batch_size=256, collate_fn=collate_encoded,
            device="cuda", device_transform=DecodeOnDevice(transform),
        )
    """

    def __init__(self, transform: Any, device: str | torch.device = "cuda") -> None:
        self.transform = transform
        self.device = torch.device(device)
        self._codec_version = codec_version()
        self._geometry, others = take_geometry(flattened(transform))
        self._steps = on_tensor(others)
        if any(type(step) is AsPicture for step in self._steps):
            raise ValueError(
                f"no step of {transform!r} makes a tensor of the picture after the crop and the flip; allowed on a "
                "device: ToTensor, PILToTensor or ToImage there, and steps that take tensors behind it"
            )

    def __call__(self, batch: Any) -> Any:
        """Returns the batch with pictures in the place of its first part. Raises TypeError for one that has none."""
        encoded = batch[0] if isinstance(batch, (list, tuple)) and batch else None
        if not isinstance(encoded, EncodedPictures):
            raise TypeError(
                f"the batch begins with {type(encoded).__name__}; allowed: EncodedPictures, which "
                "collate_fn=collate_encoded makes"
            )
        found = []
        for pixels in self._cropped(list(encoded)):
            for step in self._steps:
                pixels = step(pixels)
            found.append(pixels)
        return [torch.stack(found), *batch[1:]]

    def _cropped(self, encoded: list[torch.Tensor]) -> list[torch.Tensor]:
        """Returns each picture's crop on the device, resized: 3 x height x width bytes."""
        jpegs = [_opened(each) if each.dim() == 1 else None for each in encoded]
        plans = [self._planned(jpeg or each) for jpeg, each in zip(jpegs, encoded)]
        asked = [(jpeg, plan.region) for jpeg, plan in zip(jpegs, plans) if jpeg is not None]
        regions = iter(decode_regions(asked, self.device))
        found = []
        for jpeg, plan, each in zip(jpegs, plans, encoded):
            pixels = next(regions) if jpeg is not None else None
            if pixels is None:
                whole = each if each.dim() == 3 else _pixels_of(decoded_by_pillow(each))
                pixels = _cut(whole, plan.region).to(self.device)
            found.append(resize(pixels, plan, self._geometry.interpolation))
        return found

    def _planned(self, picture: Jpeg | torch.Tensor) -> Plan:
        height, width = (picture.height, picture.width) if isinstance(picture, Jpeg) else picture.shape[:2]
        plan = self._geometry.plan(height, width)
        if plan is None:
            raise ValueError(
                f"a picture of {height}x{width} is smaller than the central crop after resizing; allowed on a device: "
                "a CenterCrop no larger than Resize"
            )
        return plan


def _opened(file: torch.Tensor) -> Jpeg | None:
    # encoded_picture() has looked at its size.
    return open_jpeg(read_encoded(file), float("inf"))


def _pixels_of(picture: Image.Image) -> torch.Tensor:
    pixels: torch.Tensor = functional.pil_to_tensor(picture)
    return pixels.permute(1, 2, 0).contiguous()


def _cut(pixels: torch.Tensor, at: Region) -> torch.Tensor:
    return pixels[at.top : at.top + at.height, at.left : at.left + at.width]
