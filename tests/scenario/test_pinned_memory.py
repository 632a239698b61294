"""pin_memory=True, and the copies that the holder makes: with a real daemon, on fake devices and on a GPU."""

from __future__ import annotations

import gc

import pytest

from tests.scenario.datasets import Numbers, equal
from tests.scenario.device_streams import copied_by_the_holder, expected, loader_of

pytestmark = pytest.mark.usefixtures("shared_daemon")


def test_pinned_batches_are_the_ring_itself(bench):
    with loader_of(Numbers(100), pin_memory=True) as loader:
        for epoch in range(3):
            registered = 0
            for batch, wanted in zip(loader, expected(epoch)):
                assert all(bench.is_pinned(each) for each in batch)
                assert equal([each.clone() for each in batch], wanted)
                registered += in_a_registered_slot(bench, batch[0])
            del batch
        if bench.is_fake:
            assert registered == 25, "every slot is registered by the third epoch"
        stats = loader.stats()
        assert (stats["memory"], stats["registered_slots"]) == ("registered", 6)


def in_a_registered_slot(bench, tensor) -> bool:
    return any(begin <= tensor.data_ptr() < begin + size for begin, size in bench.fake.registered.items())


def test_a_slot_outlives_the_copy_that_its_holder_makes(bench):
    """The stream is delayed; the batch is copied, dropped, and the ring refills: the copy must be of the batch."""
    with loader_of(Numbers(400), pin_memory=True) as loader:
        for epoch in range(3):
            bench.delay()
            assert equal(copied_by_the_holder(bench, loader), expected(epoch, 400))


def test_a_stream_that_was_told_of_is_waited_for_too(bench):
    side = bench.backend.new_stream()
    with loader_of(Numbers(400), pin_memory=True) as loader:
        for epoch in range(2):
            found = []
            bench.delay(side)
            for batch in loader:
                with bench.backend.on(side):
                    found.append([bench.to_device(each) for each in batch])
                loader.record_stream(batch, side)
                del batch
            with bench.backend.on(side):
                read = [[bench.read(each) for each in batch] for batch in found]
            assert equal([[each() for each in batch] for batch in read], expected(epoch, 400))


def test_another_device_s_current_stream_is_waited_for_untold(bench):
    """The batches go to two devices, one of which is slow."""
    if not bench.is_fake:
        pytest.skip("a fake device has another one beside it")
    other = bench.backend.new_stream()
    bench.fake.elsewhere.append(other)
    with loader_of(Numbers(400), pin_memory=True) as loader:
        for epoch in range(2):
            found = []
            bench.delay(other)
            for batch in loader:
                here = [bench.to_device(each) for each in batch]
                with bench.backend.on(other):
                    found.append((here, [bench.to_device(each) for each in batch]))
                del batch
            there = []
            with bench.backend.on(other):
                there = [[bench.read(each) for each in batch] for _, batch in found]
            assert equal([[each() for each in batch] for batch in there], expected(epoch, 400))
            assert equal([[bench.read(each)() for each in batch] for batch, _ in found], expected(epoch, 400))


def test_a_stream_of_which_nothing_was_told_reads_what_came_later(bench):
    """Or the test before proves nothing."""
    if not bench.is_fake:
        pytest.skip("a GPU may be fast enough")
    side = bench.backend.new_stream()
    with loader_of(Numbers(400), pin_memory=True) as loader:
        for _ in loader:
            pass
        found = []
        bench.delay(side)
        for batch in loader:
            with bench.backend.on(side):
                found.append(bench.to_device(batch[0]))
            del batch
        with bench.backend.on(side):
            read = [bench.read(each) for each in found]
        assert not equal([each() for each in read], [batch[0] for batch in expected(1, 400)])


def test_a_copy_under_way_at_the_end_of_the_loader(bench):
    loader = loader_of(Numbers(100), pin_memory=True)
    batch = next(iter(loader))
    bench.delay()
    copied = [bench.to_device(each) for each in batch]
    read = [bench.read(each) for each in copied]
    loader.close()
    assert equal([each.clone() for each in batch], expected(0)[0])
    del batch
    assert equal([each() for each in read], expected(0)[0])


def test_a_batch_that_is_dropped_while_a_graph_is_captured(bench):
    if not bench.is_fake:
        pytest.skip("a fake device is told to capture")
    # Of a length that no test before has: the daemon may not know yet that its loader has ended.
    loader = loader_of(Numbers(92), pin_memory=True)
    batch = next(iter(loader))
    loader.close()
    bench.fake.capturing = True
    del batch
    gc.collect()
    assert len(bench.fake.registered) == 1, "memory was unregistered while a graph was captured"
    bench.fake.capturing = False
    # Of another stream: the daemon may not know yet that the first one has ended, and of two each has copies.
    with loader_of(Numbers(96), pin_memory=True) as another:
        next(iter(another))
        assert len(bench.fake.registered) == 1, "what was postponed is done at the next next()"


@pytest.mark.parametrize("mode", ["staged", "pageable"])
def test_pinned_copies_where_the_ring_cannot_be_registered(bench, mode):
    if not bench.is_fake:
        pytest.skip("a fake device refuses when it is told to")
    bench.fake.refuses = "no"
    bench.fake.has_pinned_memory = mode == "staged"
    with loader_of(Numbers(100), pin_memory=True) as loader:
        found = []
        for batch in loader:
            assert all(bench.is_pinned(each) == (mode == "staged") for each in batch)
            found.append([bench.read(bench.to_device(each)) for each in batch])
        assert equal([[each() for each in batch] for batch in found], expected(0))
        assert loader.stats()["memory"] == mode
