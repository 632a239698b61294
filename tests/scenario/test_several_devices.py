"""Loaders on two devices in one process: fake ones, and GPUs where there are two."""

from __future__ import annotations

import random

import pytest
import torch
from prefetchd_client.loader import device_selection as selection

from tests.scenario.datasets import Numbers, equal
from tests.scenario.device_streams import expected, loader_of
from tests.unit.client.device.fake_device import FakeDevice

pytestmark = pytest.mark.usefixtures("shared_daemon")
NAMES = ("cuda:0", "cuda:1")


@pytest.fixture
def fakes(monkeypatch):
    found = {torch.device(name): FakeDevice(random.Random(name)) for name in NAMES}
    monkeypatch.setattr(selection, "backend_for", found.__getitem__)
    yield list(found.values())
    assert [fake.violations for fake in found.values()] == [[], []]
    assert [fake.registered for fake in found.values()] == [{}, {}]


def test_each_loader_copies_to_its_own_device(fakes):
    with loader_of(Numbers(100), device=NAMES[0]) as one, loader_of(Numbers(100), device=NAMES[1]) as other:
        for epoch in range(2):
            fakes[epoch].delay(fakes[epoch].current_stream())
            found = [
                [[fake.read(each) for each in batch] for fake, batch in zip(fakes, pair)] for pair in zip(one, other)
            ]
            for place in range(2):
                assert equal([[each() for each in pair[place]] for pair in found], expected(epoch))
        assert [len(fake.transfers) for fake in fakes] == [2 * 50, 2 * 50]
        assert [len(fake.registered) for fake in fakes] == [6, 6]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")
@pytest.mark.parametrize("current", [0, 1])
def test_on_two_gpus_whichever_is_current(current):
    with (
        torch.cuda.device(current),
        loader_of(Numbers(100), device=NAMES[0]) as one,
        loader_of(Numbers(100), device=NAMES[1]) as other,
    ):
        for place, pair in enumerate(zip(one, other)):
            for name, batch in zip(NAMES, pair):
                assert all(each.device == torch.device(name) for each in batch)
                assert equal([each.cpu() for each in batch], expected(0)[place])
