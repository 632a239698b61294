"""The demo's trainer, as far as it needs no daemon."""

from __future__ import annotations

import dataclasses
import io

import pytest
from PIL import Image
from prefetchd_client import PrefetchLoader
from prefetchd_demo.trainer_messages import (
    DATALOADER,
    PREFETCHD,
    Ended,
    Failed,
    Opened,
    Plan,
    Progress,
    decode,
    decode_plan,
    encode,
    encode_plan,
)
from prefetchd_demo.training import Trainer, make_loader, open_images
from torch.utils.data import DataLoader, RandomSampler

from prefetchd.wire.errors import CallerError

PLAN = Plan(PREFETCHD, "", 0, 4, 0, "", 0, 2, "")


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """On 10 images in two classes, made in this process."""
    monkeypatch.setenv("PREFETCHD_INLINE", "1")
    for number in range(10):
        directory = tmp_path / "data" / "ab"[number % 2]
        directory.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (number, 0, 0)).save(directory / f"{number}.jpg")
    return dataclasses.replace(PLAN, data=str(tmp_path / "data"), checkpoint=str(tmp_path / "checkpoint.pt"))


@pytest.mark.parametrize(
    "message", [Opened(1, 2), Progress(1, 2, 3, 4.5, 0.5, 6.0, 7.0, 8.0, 9.0), Ended(), Failed("x")]
)
def test_messages_survive(message):
    assert decode(encode(message)) == message
    assert encode(message).count("\n") == 1


def test_a_plan_survives():
    assert decode_plan(encode_plan(PLAN)) == PLAN


def test_both_loaders_have_the_same_batches_and_as_many_workers(plan):
    images = open_images(plan)
    loaders = [
        make_loader(dataclasses.replace(plan, loader=kind, workers=2), images) for kind in (PREFETCHD, DATALOADER)
    ]
    assert [type(loader) for loader in loaders] == [PrefetchLoader, DataLoader]
    assert [loader.num_workers for loader in loaders] == [2, 2]
    assert loaders[0].spec.workers == 2
    assert [(loader.batch_size, type(loader.sampler), len(loader)) for loader in loaders] == [(4, RandomSampler, 3)] * 2
    loaders[0].close()


def test_it_tells_of_each_epochs_end_and_a_second_one_goes_on(plan):
    plan = dataclasses.replace(plan, batch_size=5)
    for first_epoch in (0, 2):
        told = _run(dataclasses.replace(plan, first_epoch=first_epoch))
        assert told[0] == Opened(10, 2)
        assert told[-1] == Ended()
        ends = [each for each in told[1:-1] if each.step == each.steps]
        assert [(each.epoch, each.steps) for each in ends] == [(first_epoch, 2), (first_epoch + 1, 2)]
        assert all(each.images_per_s > 0 and each.first_batch_s > 0 for each in ends)


def test_part_of_the_images_is_spread_over_all(plan):
    images = open_images(dataclasses.replace(plan, most_images=4))
    assert [label for _, label in images.samples] == [0, 0, 1, 1]
    assert len(open_images(plan)) == 10


def test_a_class_without_images_is_named(plan, tmp_path):
    (tmp_path / "data" / "empty").mkdir()
    with pytest.raises(CallerError, match=r"--data .*data: .*empty"):
        open_images(plan)


def _run(plan):
    out = io.StringIO()
    Trainer(plan, out).run()
    return [decode(line) for line in out.getvalue().splitlines()]
