"""R5: one file a sample, two generators, a validation inside of each epoch."""

from __future__ import annotations

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

from examples import by_id
from tests.reference.comparing_loaders import assert_same_batches, output_of
from tests.scenario.waiting import stream_when


def test_every_batch_is_dataloaders(shared_daemon, tmp_path):
    params = by_id.PARAMS | {"batch_size": 16, "num_workers": 2}
    theirs, ours = (by_id.made_loaders(kind, tmp_path, params) for kind in (DataLoader, PrefetchLoader))
    assert_same_batches(theirs, ours)


def test_each_loader_is_full_while_the_other_is_used(shared_daemon, tmp_path):
    params = by_id.PARAMS | {"batch_size": 8, "num_workers": 2, "buffer": 6}
    loaders = by_id.made_loaders(PrefetchLoader, tmp_path, params)
    with loaders["train"] as training, loaders["validation"] as validation:
        for _ in range(2):
            for number, _batch in enumerate(training):
                if number == 3:
                    is_full(shared_daemon, validation)
            for number, _batch in enumerate(validation):
                if number == 3:
                    is_full(shared_daemon, training)


def is_full(daemon, loader):
    name = loader.stats()["stream"]

    def holds(stream):
        # A ring of its own, of the size that it was given: a former test's may still have the name.
        ring = stream["ring"]
        return ring and ring["slots"] == 6 and ring["free"] == ring["filling"] == 0

    stream_when(daemon, name, holds, "its ring is full")


def test_the_example_trains_alike(shared_daemon, tmp_path):
    arguments = (str(tmp_path), "--epochs", "3")
    ours = output_of("by_id", shared_daemon, *arguments)
    assert ours == output_of("by_id", shared_daemon, *arguments, "--loader", "torch")
    assert ours.startswith("validation ")
