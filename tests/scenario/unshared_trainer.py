"""One rank of several that share nothing: what each loader gives it, and what DataLoader gives it. Run as a script."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch.distributed
from prefetchd_client import PrefetchLoader
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    get_worker_info,
)

from tests.scenario.datasets import Numbers

LENGTH = 101


class Counted(IterableDataset):
    """LENGTH numbers, dealt to the workers as get_worker_info() tells them."""

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        yield from range(first, LENGTH, step)


def made(kind: Any) -> dict[str, Any]:
    """By name, a loader of `kind` as each script would make it."""
    dataset = Numbers(LENGTH)
    seeded = torch.Generator().manual_seed(7)
    return {
        "plain": kind(dataset, batch_size=8),
        "shuffle": kind(dataset, batch_size=8, shuffle=True),
        "sequential": kind(dataset, batch_size=8, sampler=SequentialSampler(dataset)),
        "random": kind(dataset, batch_size=8, sampler=RandomSampler(dataset)),
        "generator": kind(dataset, batch_size=8, sampler=RandomSampler(dataset, generator=seeded)),
        "batches": kind(dataset, batch_sampler=BatchSampler(SequentialSampler(dataset), 8, True)),
        "iterable": kind(Counted(), batch_size=8),
        "shards": kind(Counted(), batch_size=8, num_workers=2),
    }


DRAWN = ("shuffle", "random")
"""Their order is each loader's own; which samples there are is not."""


def epoch(name: str, loader: Any) -> list[Any]:
    """What one epoch has: batch by batch, or where the order is drawn the samples alone."""
    batches = [(each if torch.is_tensor(each) else each[1]).tolist() for each in loader]
    return sorted(index for batch in batches for index in batch) if name in DRAWN else batches


def found(kind: Any) -> dict[str, Any]:
    loaders = made(kind)
    lengths = {name: len(loader) for name, loader in loaders.items() if name not in ("iterable", "shards")}
    epochs = {name: epoch(name, loader) for name, loader in loaders.items()}
    for loader in loaders.values():
        if isinstance(loader, PrefetchLoader):
            loader.close()
    return {"epochs": epochs, "lengths": lengths}


def main(directory: str) -> None:
    warnings.simplefilter("error", UserWarning)
    told = {}
    told["torchrun"] = {kind.__name__: found(kind) for kind in (DataLoader, PrefetchLoader)}
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    told["group"] = {kind.__name__: found(kind) for kind in (DataLoader, PrefetchLoader)}
    torch.distributed.barrier()
    Path(directory, f"{rank}.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
