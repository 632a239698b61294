"""Does preparing images once pay? DataLoader with torchvision, tensordict's recipe, and a sample cache, in turn.

    python -m benchmarks.sample_cache [--rounds N] [--pictures N] [--only gather|train|validate|first]

The demo's JPEGs of 500x375, resized to 256x256. gather: whole batches of them as bytes, in random order. train: random
crop of 224x224, flip, normalised; and, for a GPU that normalises, as bytes. validate: centre crop, normalised, from the
second epoch on. first: an epoch that builds the cache beside one without any.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from prefetchd_client import PrefetchLoader, SampleCache
from prefetchd_client.sample_cache import Transformed
from prefetchd_demo.pictures import cached_pictures
from tensordict import TensorDict
from torch.utils.data import DataLoader, Subset

from benchmarks.harness import endless, interleave, own_daemon, report, stopwatch
from examples.prepared_once import (
    BATCH,
    CENTRE,
    OFFSET,
    RANDOM,
    SCALE,
    augmented,
    augmented_floats,
    cropped,
    cropped_floats,
    images_of,
)

WORKERS = 2
RING_BATCHES = 8
VALIDATED = 640
SECONDS_A_ROUND = 6.0

Batches = Iterator[Any]


def rate(batches: Batches, use: Callable[[Any], Any]) -> float:
    """Returns images a second over SECONDS_A_ROUND; what was ready before does not count."""
    for batch in itertools.islice(batches, RING_BATCHES + 1):
        use(batch)
    elapsed, images = stopwatch(), 0
    while elapsed() < SECONDS_A_ROUND:
        batch = next(batches)
        use(batch)
        images += len(batch[1])
        del batch
    return images / elapsed()


def as_it_is(batch: Any) -> Any:
    return batch


class Normalise:
    """Normalises batches as `normalised` does images, into memory that is there: the result is overwritten by the next
    one."""

    def __init__(self) -> None:
        self._result = torch.empty(0)

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        if self._result.shape != images.shape:
            self._result = torch.empty(images.shape)
        return torch.sub(images, OFFSET, out=self._result).mul_(SCALE)


class Recipe:
    """Loads by tensordict's recipe: a memory-mapped TensorDict is indexed in the trainer, and the batch transformed at
    once."""

    def __init__(
        self, samples: Path, use: Callable[[torch.Tensor], Any] | None = None, *, shuffle: bool = True
    ) -> None:
        data = TensorDict.load_memmap(samples)
        if not shuffle:
            data = data[:VALIDATED]
        # The dataset's __getitems__ gives a batch as a TensorDict, which is not collated any more.
        self._loader = DataLoader(data, BATCH, shuffle=shuffle, drop_last=True, collate_fn=as_it_is)
        self._use = use

    def __iter__(self) -> Batches:
        for batch in self._loader:
            yield (self._use(batch["0"]) if self._use else batch["0"]), batch["1"]


def compared(title: str, contestants: dict[str, tuple[Any, Callable[[Any], Any]]], goals: Any, rounds: int) -> None:
    sources = {name: (endless(loader), use) for name, (loader, use) in contestants.items()}
    runs = {name: (lambda source=source: rate(*source)) for name, source in sources.items()}
    report(title, "img/s", interleave(rounds, runs), "prefetchd", goals)


def gather(cache: SampleCache, rounds: int) -> None:
    with PrefetchLoader(cache, BATCH, shuffle=True, drop_last=True, buffer=RING_BATCHES, num_workers=WORKERS) as ours:
        contestants = {"prefetchd": (ours, as_it_is), "tensordict": (Recipe(cache.samples), as_it_is)}
        compared("gather, 3x256x256 bytes", contestants, {"tensordict": 3.0}, rounds)


def train(cache: SampleCache, rounds: int, *, as_bytes: bool) -> None:
    """As floats they come normalised: by the workers, of whom the recipe has none."""
    normalise = Normalise()
    each, whole = (augmented, RANDOM) if as_bytes else (augmented_floats, lambda images: normalise(RANDOM(images)))
    theirs = Transformed(cache.dataset, each)
    options: dict[str, Any] = {"shuffle": True, "drop_last": True, "num_workers": WORKERS}
    with PrefetchLoader(cache, BATCH, transform=each, buffer=RING_BATCHES, **options) as ours:
        contestants = {
            "prefetchd": (ours, as_it_is),
            "tensordict": (Recipe(cache.samples, whole), as_it_is),
            "DataLoader": (DataLoader(theirs, BATCH, persistent_workers=True, **options), as_it_is),
        }
        title = "train, crop and flip, " + ("as bytes" if as_bytes else "normalised")
        compared(title, contestants, {"tensordict": None, "DataLoader": 10.0}, rounds)


def validate(cache: SampleCache, rounds: int, *, as_bytes: bool) -> None:
    chosen = range(VALIDATED)
    normalise = Normalise()
    buffer = VALIDATED // BATCH + RING_BATCHES
    each, whole = (cropped, CENTRE) if as_bytes else (cropped_floats, lambda images: normalise(CENTRE(images)))
    with PrefetchLoader(
        Subset(cache, chosen), BATCH, transform=each, deterministic=True, buffer=buffer, num_workers=WORKERS
    ) as ours:
        theirs = Transformed(Subset(cache.dataset, chosen), each)
        contestants = {
            "prefetchd": (ours, as_it_is),
            "tensordict": (Recipe(cache.samples, whole, shuffle=False), as_it_is),
            "DataLoader": (DataLoader(theirs, BATCH, persistent_workers=True, num_workers=WORKERS), as_it_is),
        }
        for _ in range(2):
            for batch in ours:
                del batch
        title = "validate, from the second epoch on, " + ("as bytes" if as_bytes else "normalised")
        compared(title, contestants, {"tensordict": None, "DataLoader": 30.0}, rounds)


def first(images: Path, directory: Path, rounds: int) -> None:
    numbers = itertools.count()

    def epoch_rate(dataset: Any) -> float:
        # A stream of its own each time: workers of one before would still have the cache of one before.
        options: dict[str, Any] = {"fingerprint_extra": next(numbers), "buffer": RING_BATCHES, "num_workers": WORKERS}
        with PrefetchLoader(dataset, BATCH, shuffle=True, transform=augmented, **options) as loader:
            batches = iter(loader)
            next(batches)
            elapsed, count = stopwatch(), 0
            for _, labels in batches:
                count += len(labels)
            return count / elapsed()

    def lazily() -> float:
        place = directory / "lazily"
        try:
            return epoch_rate(SampleCache(images_of(images), place))
        finally:
            # Of what earlier rounds had left the later ones were slower.
            shutil.rmtree(place)

    runs = {"prefetchd": lazily, "without a cache": lambda: epoch_rate(images_of(images))}
    report("first epoch, building the cache", "img/s", interleave(rounds, runs), "prefetchd", {"without a cache": 0.9})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--only", choices=["gather", "train", "validate", "first"])
    arguments = parser.parse_args()
    images = cached_pictures(arguments.pictures, WORKERS, lambda directory, so_far: None)
    with tempfile.TemporaryDirectory(prefix="prefetchd-bench-") as place, own_daemon(workers=WORKERS):
        parts: dict[str, Callable[[SampleCache], None]] = {
            "gather": lambda cache: gather(cache, arguments.rounds),
            "train, as bytes": lambda cache: train(cache, arguments.rounds, as_bytes=True),
            "train": lambda cache: train(cache, arguments.rounds, as_bytes=False),
            "validate, as bytes": lambda cache: validate(cache, arguments.rounds, as_bytes=True),
            "validate": lambda cache: validate(cache, arguments.rounds, as_bytes=False),
            "first": lambda cache: first(images, Path(place), arguments.rounds),
        }
        cache = SampleCache(images_of(images), Path(place) / "cache")
        if arguments.only != "first":
            cache.build()
        for name, run in parts.items():
            if arguments.only in (None, name.partition(",")[0]):
                run(cache)


if __name__ == "__main__":
    main()
