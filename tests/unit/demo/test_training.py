"""The demo's trainer, as far as it needs no daemon."""

from __future__ import annotations

import dataclasses
import io

import pytest
from PIL import Image
from prefetchd_client import PrefetchLoader
from prefetchd_demo.images import open_images
from prefetchd_demo.loaders import make_loader
from prefetchd_demo.trainer_messages import (
    CACHED,
    DATALOADER,
    ON_CPU,
    PREFETCHD,
    STAND_IN,
    Ended,
    Failed,
    Opened,
    Plan,
    Progress,
    Validated,
    decode,
    decode_plan,
    encode,
    encode_plan,
)
from prefetchd_demo.training import Trainer
from torch.utils.data import DataLoader, RandomSampler

from prefetchd.wire.errors import CallerError

PLAN = Plan(PREFETCHD, STAND_IN, 0.0, "", 0, 4, 0, "", 2, False, False, "", "")


class KilledError(BaseException):
    """Comes where a trainer would be killed."""


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """On 10 images in two classes, made in this process."""
    monkeypatch.setenv("PREFETCHD_INLINE", "1")
    for number in range(10):
        directory = tmp_path / "data" / "ab"[number % 2]
        directory.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (number * 20, 0, 0)).save(directory / f"{number}.jpg")
    checkpoint, cache = str(tmp_path / "checkpoint.pt"), str(tmp_path / "cache")
    return dataclasses.replace(PLAN, data=str(tmp_path / "data"), checkpoint=checkpoint, cache=cache)


@pytest.mark.parametrize(
    "message",
    [
        Opened(1, 2),
        Progress(1, 2, 3, 4.5, 0.5, 6.0, 7.0, 8.0, 9.0),
        Validated(0, 0.1, 0.2, 1.0, 3.0),
        Ended(),
        Failed("x"),
    ],
)
def test_messages_survive(message):
    assert decode(encode(message)) == message
    assert encode(message).count("\n") == 1


def test_a_plan_survives():
    assert decode_plan(encode_plan(PLAN)) == PLAN


def test_both_loaders_have_the_same_arguments(plan):
    plan = dataclasses.replace(plan, step=ON_CPU, workers=2)
    images = open_images(plan)
    loaders = [
        make_loader(dataclasses.replace(plan, loader=kind), images.training, None) for kind in (PREFETCHD, DATALOADER)
    ]
    assert [type(loader) for loader in loaders] == [PrefetchLoader, DataLoader]
    assert [loader.num_workers for loader in loaders] == [2, 2]
    assert loaders[0].spec.workers == 2
    assert [(loader.batch_size, type(loader.sampler), len(loader)) for loader in loaders] == [(4, RandomSampler, 3)] * 2
    assert [loader.persistent_workers for loader in loaders] == [True, True]
    loaders[0].close()


def test_on_the_cpu_it_tells_of_each_epochs_end_and_a_second_one_goes_on(plan):
    plan = dataclasses.replace(plan, batch_size=5, step=ON_CPU)
    for first_epoch in (0, 2):
        told = _run(dataclasses.replace(plan, epochs=first_epoch + 2, resumes=first_epoch > 0))
        assert told[0] == Opened(10, 2)
        assert told[-1] == Ended()
        ends = [each for each in told[1:-1] if each.step == each.steps]
        assert [(each.epoch, each.steps) for each in ends] == [(first_epoch, 2), (first_epoch + 1, 2)]
        assert all(each.images_per_s > 0 and each.first_batch_s > 0 for each in ends)


@pytest.mark.parametrize("kind", [PREFETCHD, DATALOADER, CACHED])
def test_one_that_is_killed_and_goes_on_ends_as_one_that_never_was(plan, kind):
    """And whichever loader it has."""
    plan = dataclasses.replace(plan, batch_size=2, loader=kind)
    never = _validated(_run(dataclasses.replace(plan, loader=DATALOADER, checkpoint=plan.checkpoint + ".other")))
    assert [epoch for epoch, _, _ in never] == [0, 1]
    before = _run(dataclasses.replace(plan, stops_midway=True))
    assert before[-1] == Ended()
    assert (before[-2].epoch, before[-2].step, before[-2].steps) == (1, 3, 5)
    after = _run(dataclasses.replace(plan, resumes=True))
    first = next(each for each in after if isinstance(each, Progress))
    assert first.epoch == 1
    assert _validated(before) + _validated(after) == never


@pytest.mark.parametrize("batch_size", [3, 5, 9, 64])
def test_short_epochs_have_something_left_after_the_kill(plan, batch_size):
    plan = dataclasses.replace(plan, batch_size=batch_size, epochs=1)
    assert _run(dataclasses.replace(plan, stops_midway=True))[-1] == Ended()
    after = _run(dataclasses.replace(plan, resumes=True))
    assert any(isinstance(each, Progress) for each in after)
    assert len(_validated(after)) == 1


def test_every_tenth_image_is_for_validation_and_none_of_these_for_training(plan):
    images = open_images(plan)
    assert (len(images.training), images.training_count, len(images.validation), images.count) == (9, 9, 1, 10)
    sums = [float(image.sum()) for dataset in (images.training, images.validation) for image, _ in dataset]
    assert len(set(sums)) == 10


def test_part_of_the_images_is_spread_over_all(plan):
    plan = dataclasses.replace(plan, step=ON_CPU)
    images = open_images(dataclasses.replace(plan, most_images=4)).training
    assert [label for _, label in images.samples] == [0, 0, 1, 1]
    assert len(open_images(plan).training) == 10


def test_a_class_without_images_is_named(plan, tmp_path):
    (tmp_path / "data" / "empty").mkdir()
    with pytest.raises(CallerError, match=r"--data .*data: .*empty"):
        open_images(plan)


def _run(plan):
    def end():
        raise KilledError

    out = io.StringIO()
    with pytest.raises(KilledError):
        Trainer(plan, out, end).run()
    return [decode(line) for line in out.getvalue().splitlines()]


def _validated(told):
    """Epoch and losses, to the last digit."""
    return [(each.epoch, each.training_loss, each.loss) for each in told if isinstance(each, Validated)]
