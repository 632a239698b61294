"""Streams that go to a device, and what is to arrive there."""

from __future__ import annotations

from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Numbers
from tests.scenario.oracle import epoch_batches
from tests.scenario.watching import stream_when


def loader_of(dataset, **arguments) -> PrefetchLoader:
    return PrefetchLoader(dataset, **({"batch_size": 4, "shuffle": True, "seed": 5, "buffer": 6} | arguments))


def expected(epoch: int, length: int = 100):
    """The batches of loader_of(Numbers(length))."""
    return epoch_batches(Numbers(length), epoch, batch_size=4, seed=5, shuffle=True)


def copied_by_the_holder(bench, loader) -> list[list]:
    """An epoch, batch by batch copied to the device and dropped; what the device has then."""
    found = []
    for batch in loader:
        found.append([bench.to_device(each) for each in batch])
        del batch
    read = [[bench.read(each) for each in batch] for batch in found]
    return [[each() for each in batch] for batch in read]


def wait_until_full(daemon, loader) -> None:
    """What is copied keeps its slot until a later next()."""

    def is_full(stream) -> bool:
        ring = stream["ring"]
        return ring is not None and ring["ready"] >= 3 and ring["ready"] + ring["leased"] == ring["slots"]

    stream_when(daemon, loader.spec.name, is_full, "its ring is full")
