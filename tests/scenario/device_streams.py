"""Streams that go to a device, and what is to arrive there."""

from __future__ import annotations

import time

from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Numbers
from tests.scenario.oracle import epoch_batches
from tests.scenario.waiting import report_when


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

    # Of before now a snapshot may tell of a ring that was full with the last batches of the epoch that has ended.
    began_unix_s = time.time()

    def is_full(report) -> bool:
        streams = [each for each in report.snapshot["streams"] if each["name"] == loader.spec.name]
        if report.snapshot["taken_unix_s"] <= began_unix_s or not streams or streams[0]["ring"] is None:
            return False
        ring = streams[0]["ring"]
        return ring["ready"] >= 3 and ring["ready"] + ring["leased"] == ring["slots"]

    report_when(daemon, is_full, "its ring is full")
