"""open_images has the demo's images as datasets, prepared for training."""

from __future__ import annotations

import dataclasses
from typing import Any

from prefetchd_client import SampleCache
from prefetchd_client.sample_cache import Transformed
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose

from prefetchd.wire.errors import CallerError
from prefetchd_demo.preparation import RANDOM, RESIZED, RESIZED_FLOATS, to_floats
from prefetchd_demo.trainer_messages import CACHED, ON_CPU, Plan

EACH_VALIDATES = 10
CACHE_LIMIT = "2GiB"


@dataclasses.dataclass(frozen=True)
class Images:
    """Holds what to train on, and what to validate on, which is nothing where the plan is ON_CPU. `count` is of
    all."""

    training: Dataset[Any]
    training_count: int
    validation: Dataset[Any] | None
    count: int
    classes: int


def open_images(plan: Plan) -> Images:
    """Opens the plan's images: for training alone, with random transforms, or every tenth for validation. Raises
    CallerError when there are none."""
    if plan.step == ON_CPU:
        folder = _image_folder(plan, RANDOM)
        return Images(folder, len(folder), None, len(folder), len(folder.classes))
    training, validation = [_image_folder(plan, RESIZED if plan.loader == CACHED else RESIZED_FLOATS) for _ in range(2)]
    found = training.samples
    training.samples = [sample for place, sample in enumerate(found) if place % EACH_VALIDATES]
    validation.samples = found[::EACH_VALIDATES]
    return Images(
        _cached(plan, training) if plan.loader == CACHED else training,
        len(training),
        _cached(plan, validation) if plan.loader == CACHED else validation,
        len(found),
        len(training.classes),
    )


def _cached(plan: Plan, prepared: ImageFolder) -> Dataset[Any]:
    return Transformed(SampleCache(prepared, plan.cache, limit=CACHE_LIMIT), to_floats)


def _image_folder(plan: Plan, transform: Compose) -> ImageFolder:
    try:
        images = ImageFolder(plan.data, transform)
    except FileNotFoundError as error:
        raise CallerError(f"--data {plan.data}: {error}") from None
    if 0 < plan.most_images < len(images):
        found = images.samples
        images.samples = [found[place * len(found) // plan.most_images] for place in range(plan.most_images)]
    return images
