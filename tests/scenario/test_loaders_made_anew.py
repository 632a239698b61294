"""Loaders that a framework makes from another, and those that are pickled."""

from __future__ import annotations

import pickle

import pytest
import torch
from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Numbers, equal
from tests.scenario.watching import report_when


class Backwards:
    """A sampler of indices."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(self.length - 1, -1, -1))

    def __len__(self):
        return self.length


def consumed_are(daemon, *names):
    """Waits until these streams, and no others, have a consumer."""

    def look(report):
        return sorted(each["name"] for each in report.snapshot["streams"] if each["consumers"]) == sorted(names)

    return report_when(daemon, look, f"{names} are consumed")


def batches(dataset, **arguments):
    with PrefetchLoader(dataset, batch_size=4, **arguments) as loader:
        return list(loader)


def test_a_loader_with_a_sampler_takes_the_stream_of_the_unused_one_without(shared_daemon):
    dataset = Numbers(20)
    with PrefetchLoader(dataset, batch_size=4, stream="anew") as first:
        with PrefetchLoader(dataset, batch_size=4, sampler=Backwards(20)) as second:
            assert second.stats()["stream"] == "anew"
            consumed_are(shared_daemon, "anew")
            assert all(map(equal, second, list(torch.utils.data.DataLoader(dataset, 4, sampler=Backwards(20)))))
        assert all(map(equal, first, batches(Numbers(20)))), "whoever wants the first one after all has it"


def test_a_loader_that_was_iterated_over_keeps_its_stream(shared_daemon):
    dataset = Numbers(20)
    with PrefetchLoader(dataset, batch_size=4, stream="kept") as first:
        iterator = iter(first)
        next(iterator)
        with PrefetchLoader(dataset, batch_size=4, sampler=Backwards(20), stream="other"):
            consumed_are(shared_daemon, "kept", "other")
        assert len(list(iterator)) == 4


@pytest.mark.parametrize("samplers", [(False, False), (True, True), (True, False)])
def test_loaders_that_nobody_makes_from_others_keep_theirs(shared_daemon, samplers):
    dataset = Numbers(20)
    first, second = (
        PrefetchLoader(dataset, batch_size=4, sampler=Backwards(20) if own else None, stream=name)
        for own, name in zip(samplers, ("one", "two"))
    )
    with first, second:
        consumed_are(shared_daemon, "one", "two")


def test_an_unpickled_loader_is_one_of_its_own_with_the_same_arguments(shared_daemon):
    with PrefetchLoader(Numbers(20), batch_size=3, shuffle=True, seed=5, drop_last=True, lookback=2) as loader:
        next(iter(loader))
        with pickle.loads(pickle.dumps(loader)) as again:
            assert again.stats()["stream"] != loader.stats()["stream"]
            assert (again.spec.fingerprint, again.spec.lookback) == (loader.spec.fingerprint, 2)
            assert again.state_dict()["step"] == 0
            loader.set_epoch(0)
            assert all(map(equal, again, loader))


def test_a_pickled_batch_sampler_goes_along(shared_daemon):
    sampler = torch.utils.data.BatchSampler(Backwards(20), 6, drop_last=False)
    with (
        PrefetchLoader(Numbers(20), batch_sampler=sampler) as loader,
        pickle.loads(pickle.dumps(loader)) as again,
    ):
        assert all(map(equal, again, loader))
        assert len(again) == 4
