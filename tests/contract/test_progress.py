"""Both sources of progress, with every store: what was consumed makes room for what follows, wherever that is."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from prefetchd.wire.stream_spec import STORES
from tests.contract.declared_daemons import PROGRESS, Declared, ram_disk

LINES = """
dataset = "tests.scenario.declared_datasets:numbers"
dataset_args = {length = 80}
batch_size = 4
buffer = 8
"""


@pytest.fixture(params=itertools.product(STORES, PROGRESS), ids="-".join)
def declared(request, daemon, tmp_path):
    with ram_disk() as disk:
        found = Declared(daemon, tmp_path, disk, *request.param, LINES)
        found.start()
        found.when_ready(8)
        yield found
        daemon.stop_and_check()


@contextmanager
def consumer(declared) -> Iterator:
    """go_to(epoch, step): a trainer is there now, and has taken what lies before it in the epoch."""
    if declared.config.read_text().count("progress"):
        yield declared.at
        return
    with declared.attach() as loader:

        def go_to(epoch, step):
            loader.load_state_dict({"version": 1, "epoch": epoch, "step": max(0, step - 1)})
            next(iter(loader))

        yield go_to


def test_what_was_consumed_makes_room_for_what_follows(declared):
    with consumer(declared) as go_to:
        go_to(0, 3)
        stream = declared.when(lambda found: found["produced_batches"] >= 10, "more is made")
        assert stream["consumed_batches"] >= 1
        assert stream["ring"]["slots"] == 8


@pytest.mark.parametrize("epoch", [1, 5])
def test_a_jump_ahead_and_back_is_followed(declared, epoch):
    with consumer(declared) as go_to:
        go_to(epoch, 10)
        ahead = declared.when(lambda found: found["produced_batches"] >= 15, "filled there")["produced_batches"]
        go_to(0, 1)
        declared.when(lambda found: found["produced_batches"] >= ahead + 7, "filled here again")


def test_it_goes_on_over_the_end_of_an_epoch(declared):
    with consumer(declared) as go_to:
        go_to(0, 19)
        made = declared.when(lambda found: found["produced_batches"] >= 15, "filled over the end")["produced_batches"]
        go_to(1, 2)
        declared.when(lambda found: found["produced_batches"] > made, "and on")


@pytest.mark.parametrize("declared", [(store, "file") for store in STORES], indirect=True, ids=STORES)
@pytest.mark.parametrize("position", [(3, 7), (0, 15)], ids=["another epoch", "the same"])
def test_what_is_ready_after_a_jump_is_what_comes_there(declared, position):
    epoch, step = position
    declared.at(epoch, step)
    # Eight were ready; of those from step 15 on none was.
    declared.when(lambda found: found["produced_batches"] >= 16 and found["ring"]["ready"] == 8, "filled there")
    with declared.attach() as loader:
        loader.load_state_dict({"version": 1, "epoch": epoch, "step": step})
        iterator = iter(loader)
        for later in range(5):
            _, indices = next(iterator)
            assert indices.tolist() == list(range(4 * (step + later), 4 * (step + later) + 4))
        assert declared.when()["produced_batches"] == 16, "they were there"
