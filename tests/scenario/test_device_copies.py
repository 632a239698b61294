"""Copies to a device: how far they are ahead, how long their slots and batches are kept, and in which threads."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest
from prefetchd_client.device.copies import Copies

from tests.scenario.datasets import Numbers, equal
from tests.scenario.device_streams import expected, loader_of, wait_until_full
from tests.scenario.waiting import until

pytestmark = pytest.mark.usefixtures("shared_daemon")
TENSORS = 2
"""Of each batch."""


def only_of_a_fake(bench) -> None:
    if not bench.is_fake:
        pytest.skip("a fake device notes what it is told")


def test_the_first_next_of_a_full_ring_starts_three_copies_on_a_stream_of_their_own(bench, shared_daemon):
    only_of_a_fake(bench)
    with loader_of(Numbers(100), device=bench.name) as loader:
        for _ in loader:
            # What is still being copied at the end of the epoch would keep a slot, and less would be offered.
            bench.fake.synchronize()
        wait_until_full(shared_daemon, loader)
        bench.fake.transfers.clear()
        iterator = iter(loader)
        found = [bench.read(each) for each in next(iterator)]
        assert len(bench.fake.transfers) == 3 * TENSORS, "its own, and two ahead"
        assert len({*bench.fake.transfers}) == 1
        assert bench.fake.current_stream() not in bench.fake.transfers
        assert equal([each() for each in found], expected(1)[0])


def test_a_slot_that_is_given_up_before_its_copy_is_done_is_filled_again(bench, monkeypatch, shared_daemon):
    """Or the tests of late consumers prove nothing: what copies keep is taken from them here."""
    only_of_a_fake(bench)
    read_from: list[int] = []
    start = Copies.start

    def emptied(copies, batch, seed, pins):
        read_from.append(batch[0].data_ptr())
        copy = start(copies, batch, seed, pins)
        copy.kept = []
        return copy

    with loader_of(Numbers(100), device=bench.name) as loader:
        until(lambda: passed_through(loader, bench) == 6, "batches have come out of all slots")
        wait_until_full(shared_daemon, loader)
        bench.delay(bench.fake.transfers[-1])
        monkeypatch.setattr(Copies, "start", emptied)
        iterator = iter(loader)
        next(iterator)
        before = memory_at(read_from[2])
        next(iterator)
        until(lambda: memory_at(read_from[2]) != before, "the third batch's slot is filled again")
        third = [bench.read(each) for each in next(iterator)]
        assert not equal([each() for each in third], expected(loader.next_epoch - 1)[2])


def passed_through(loader, bench) -> int:
    """The ring's slots that batches have come out of, after one epoch more."""
    for _ in loader:
        # What is still being copied keeps a slot: more of them than half of the ring, and batches are copies.
        bench.fake.synchronize()
    return int(loader.stats()["registered_slots"])


def memory_at(address: int) -> bytes:
    """The first numbers of a batch."""
    return ctypes.string_at(address, 32)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_stream_that_was_told_of_reads_batches_that_were_dropped(bench, is_told):
    """Of which nothing was told: its memory is another batch's by then."""
    if not is_told:
        only_of_a_fake(bench)
    side = bench.backend.new_stream()
    with loader_of(Numbers(100), device=bench.name) as loader:
        found = []
        bench.delay(side)
        for batch in loader:
            bench.backend.wait(side, bench.backend.record(bench.backend.current_stream()))
            with bench.backend.on(side):
                found.append([bench.read(each) for each in batch])
            if is_told:
                loader.record_stream(batch, side)
            del batch
        assert equal([[each() for each in batch] for batch in found], expected(0)) == is_told


@pytest.mark.parametrize("way", ["device", "pin_memory"])
def test_the_trainer_s_process_has_no_more_threads_than_before(bench, way):
    only_of_a_fake(bench)
    before = {*os.listdir("/proc/self/task")}, threading.active_count()
    with loader_of(Numbers(100), **{way: bench.name if way == "device" else True}) as loader:
        for _, batch in zip(range(20), loader):
            found = batch if way == "device" else [bench.to_device(each) for each in batch]
            assert all(bench.read(each)() is not None for each in found)
        assert ({*os.listdir("/proc/self/task")} - before[0], threading.active_count()) == (set(), before[1])
