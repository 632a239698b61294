"""Where loaders begin that one process makes one after the other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from prefetchd_client.loader import beginnings
from prefetchd_client.loader.beginnings import beginning_of, note_iterator

from prefetchd.wire.stream_spec import StreamSpec
from tests.budgets import tries

SHUFFLED = StreamSpec("0" * 32, 100, "shuffle", 0, 1)


@pytest.fixture(autouse=True)
def none_before():
    beginnings.forget()
    yield
    beginnings.forget()


def made(spec=SHUFFLED, *, generator=None, stream=None):
    return beginning_of(spec, generator, stream)


def iterated(beginning, epochs=1):
    """Begins so many epochs of a loader, each as an iterator does. Returns them."""
    found = range(beginning.epoch, beginning.epoch + epochs)
    for epoch in found:
        torch.empty((), dtype=torch.int64).random_()
        note_iterator()
        beginning.begun(epoch)
    return list(found)


def test_a_loader_that_is_made_again_goes_on():
    assert [iterated(made()) for _ in range(3)] == [[0], [1], [2]]


def test_it_goes_on_after_all_epochs_of_the_former():
    assert iterated(made(), 3) == [0, 1, 2]
    assert iterated(made()) == [3]


def test_what_set_epoch_has_said_counts():
    made().begun(7)
    assert made().epoch == 8


def test_two_that_are_made_one_after_the_other_have_epochs_of_their_own():
    assert [made().epoch, made().epoch] == [0, 1]


def test_another_number_of_samples_is_another_order():
    made()
    assert made(StreamSpec("0" * 32, 99, "shuffle", 0, 1)).epoch == 0


def test_whoever_seeds_again_has_the_same_again():
    def train():
        torch.manual_seed(5)
        torch.rand(3)
        first, second = made(), made()
        found = [*iterated(first, 2), *iterated(second)]
        return [*found, *iterated(made())]

    assert train() == train()


def test_a_generator_is_one_of_those_that_tell():
    generator = torch.Generator().manual_seed(1)
    assert iterated(made(generator=generator)) == [0]
    torch.rand(1, generator=generator)
    assert iterated(made(generator=generator)) == [1]


def test_loaders_of_one_name_share_it_until_one_begins():
    one, other = made(stream="shared"), made(stream="shared")
    assert one.epoch == other.epoch == 0
    assert made(stream="other").epoch == 1
    iterated(one)
    assert made(stream="shared").epoch == 2


def test_where_processes_share_an_epoch_none_is_ahead_of_the_others():
    shared = StreamSpec("0" * 32, 100, "shuffle", 0, 1, rank=1, world_size=2)
    iterated(made(shared))
    assert made(shared).epoch == 0


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(beginnings, "MOST_STATES", 4)
    torch.manual_seed(5)
    assert iterated(made()) == [0]
    for _ in range(4):
        iterated(made())
    torch.manual_seed(5)
    assert iterated(made()) == [5]


@tries(100)
@given(st.lists(st.tuples(st.sampled_from(["make", "iterate"]), st.integers(0, 3)), max_size=20))
def test_no_two_loaders_begin_alike_where_nobody_seeds(steps):
    beginnings.forget()
    loaders = []
    for step, which in steps:
        if step == "make":
            loaders.append(made())
        elif loaders:
            iterated(loaders[which % len(loaders)])
    begun = [each.epoch for each in loaders]
    assert len(set(begun)) == len(begun)
