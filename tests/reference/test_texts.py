"""R4: named tuples of different lengths, a padding collate, ConcatDataset, random_split, a plain list."""

from __future__ import annotations

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

from examples import texts
from tests.reference.comparing_loaders import assert_same_batches, output_of


def test_every_batch_is_dataloaders(shared_daemon):
    theirs, ours = (texts.made_loaders(kind, count=60) for kind in (DataLoader, PrefetchLoader))
    assert_same_batches(theirs, ours)


def test_types_arrive_as_they_are(shared_daemon):
    loaders = texts.made_loaders(PrefetchLoader, count=60)
    for loader in loaders.values():
        with loader:
            first = next(iter(loader))
            kind = texts.Text if loader is loaders["list"] else texts.Batch
            assert type(first) is kind
            if kind is texts.Batch:
                assert first.tokens.shape == (16, int(first.lengths.max()))
                assert all(type(source) is tuple for source in first.sources)


def test_the_example_trains_alike(shared_daemon):
    ours = output_of("texts", shared_daemon, "--epochs", "1")
    assert ours == output_of("texts", shared_daemon, "--epochs", "1", "--loader", "torch")
    assert ours.startswith("validation ")
