"""Trains on tar files with webdataset: its WebLoader, its pipelines, shards by worker, epochs of a given length."""

import itertools
import json
import pathlib

import numpy as np
import torch
import webdataset

SHARDS = "data/rows-{000000..000003}.tar"


def write_shards():
    """Four of nine rows each."""
    pathlib.Path("data").mkdir()
    for shard in range(4):
        with webdataset.TarWriter(f"data/rows-{shard:06}.tar") as file:
            for row in range(9):
                number = shard * 9 + row
                picture = np.full((6, 6, 3), 7 * number, np.uint8)
                file.write({"__key__": f"{number:04}", "png": picture, "cls": number % 3, "json": {"at": number}})


def rows(**options):
    options = {"shardshuffle": False} | options
    return webdataset.WebDataset(SHARDS, **options).decode("torchrgb").to_tuple("png", "cls", "json")


def numbers(batch):
    return [row["at"] for row in batch[2]]


def collated(samples):
    pictures, classes, notes = zip(*samples)
    return torch.stack(pictures), torch.tensor(classes), list(notes)


def trained():
    """Losses of two workers' batches, two epochs, an epoch that is left, and one more."""
    torch.manual_seed(3)
    loader = webdataset.WebLoader(rows().batched(4, collation_fn=collated), batch_size=None, num_workers=2)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 3), torch.nn.Dropout(0.3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    found = []
    for stop in (None, None, 3, None):
        for pictures, classes, _ in itertools.islice(loader, stop):
            loss = torch.nn.functional.cross_entropy(model(pictures), classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return found


def batched_anew():
    """Workers' batches are taken apart, mixed and batched again by the trainer, to epochs of a given length."""
    loader = webdataset.WebLoader(rows().batched(4, collation_fn=collated), batch_size=None, num_workers=2)
    loader = loader.compose(taken_apart)
    loader = loader.compose(webdataset.detshuffle(10, 5)).batched(6, collation_fn=collated).with_epoch(4)
    return [[numbers(batch) for batch in loader] for _ in range(3)]


def taken_apart(batches):
    for pictures, classes, notes in batches:
        yield from zip(pictures, classes.tolist(), notes)


def by_workers():
    """How shards are split among workers, and what torch's own collation makes of single rows."""
    found = []
    for workers in (0, 1, 2, 4):
        loader = webdataset.WebLoader(rows(), batch_size=5, num_workers=workers)
        found.append([batch[2]["at"].tolist() for batch in loader])
    return found


def with_epochs():
    """Epochs cut by the dataset, of shards drawn again and again from a seed of each worker's."""
    dataset = webdataset.DataPipeline(
        webdataset.ResampledShards(SHARDS, deterministic=True, seed=5),
        webdataset.tarfile_to_samples(),
        webdataset.detshuffle(8, 4),
        webdataset.decode("torchrgb"),
        webdataset.to_tuple("png", "cls", "json"),
        webdataset.batched(3, collation_fn=collated),
    ).with_epoch(4)
    loader = webdataset.WebLoader(dataset, batch_size=None, num_workers=2)
    return [[numbers(batch) for batch in loader] for _ in range(3)]


def shuffled_by_seed():
    """Shards and rows in a random order, of a seed that is given."""
    dataset = webdataset.DataPipeline(
        webdataset.SimpleShardList(SHARDS, seed=4),
        webdataset.split_by_node,
        webdataset.split_by_worker,
        webdataset.tarfile_to_samples(),
        webdataset.shuffle(8, initial=4, seed=9),
        webdataset.decode("torchrgb"),
        webdataset.to_tuple("png", "cls", "json"),
    )
    loader = webdataset.WebLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
    return [[batch[2]["at"].tolist() for batch in loader] for _ in range(2)]


def shuffled():
    """At random: which rows there are, in each epoch."""
    loader = webdataset.WebLoader(rows(shardshuffle=10).shuffle(20).batched(4, collation_fn=collated), batch_size=None)
    return [sorted(number for batch in loader for number in numbers(batch)) for _ in range(2)]


if __name__ == "__main__":
    write_shards()
    parts = (trained, batched_anew, by_workers, with_epochs, shuffled_by_seed, shuffled)
    pathlib.Path("results.json").write_text(json.dumps({part.__name__: part() for part in parts}))
