"""What stands in for a GPU: how long it takes, and what is said of it."""

from __future__ import annotations

import copy
import time

import pytest
import torch
from prefetchd_demo.network import ThumbnailNetwork
from prefetchd_demo.stand_in import a100_step_s, explain_stand_in
from prefetchd_demo.steps import NetworkStep, StandInStep

IMAGES, LABELS = torch.rand(4, 3, 224, 224, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 1, 0])


def made(step_s):
    torch.manual_seed(0)
    return StandInStep(NetworkStep(ThumbnailNetwork(2), "cpu"), step_s)


def test_its_length_is_said_first_and_where_it_is_from():
    assert explain_stand_in(64, a100_step_s(64)) == (
        "A stand-in for a GPU trains: each step lasts 68 ms, asleep, and leaves the CPUs alone. So long takes "
        "ResNet-50 on an A100 for 64 images (TF32, 938 img/s)."
    )
    assert explain_stand_in(64, 0.02) == (
        "A stand-in for a GPU trains: each step lasts 20 ms, asleep, and leaves the CPUs alone."
    )


@pytest.mark.parametrize(("work", "least_s"), [("train", 0.15), ("evaluate", 0.05)])
def test_a_step_lasts_as_long_as_it_should_and_uses_no_cpu(work, least_s):
    step = made(0.15)
    step.train(IMAGES, LABELS)
    began_s, cpu_s = time.monotonic(), time.thread_time()
    getattr(step, work)(IMAGES, LABELS)
    assert time.monotonic() - began_s >= least_s
    assert time.thread_time() - cpu_s < least_s


def test_its_loss_depends_on_each_image_and_falls():
    step = made(0.0)
    first = step.evaluate(IMAGES, LABELS)
    for place in range(len(IMAGES)):
        other = IMAGES.clone()
        other[place] = 0
        assert step.evaluate(other, LABELS).loss != first.loss
    for _ in range(20):
        step.train(IMAGES, LABELS)
    assert step.evaluate(IMAGES, LABELS).loss < first.loss
    assert step.evaluate(IMAGES, LABELS).correct == 4


def test_one_that_is_loaded_goes_on_the_same():
    one, other = made(0.0), made(0.0)
    one.train(IMAGES, LABELS)
    other.load(copy.deepcopy(one.state()))
    assert [each.train(IMAGES, LABELS).loss for each in (one, one)] == [
        each.train(IMAGES, LABELS).loss for each in (other, other)
    ]
