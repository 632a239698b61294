"""Batches on a device, with a real daemon that fills the ring again: on fake devices whose work is done late and out of
order, and on a GPU where there is one."""

from __future__ import annotations

import gc
import itertools

import pytest
import torch
from prefetchd_client import PrefetchLoader

from prefetchd.wire.errors import CallerError
from tests.scenario.datasets import Made, Numbers, equal
from tests.scenario.device_streams import expected, loader_of
from tests.scenario.forked import forked, told_by
from tests.scenario.waiting import stream_when

pytestmark = pytest.mark.usefixtures("shared_daemon")
EPOCHS = 2


def test_batches_on_the_device_are_those_of_the_cpu(bench):
    with loader_of(Numbers(100), device=bench.name) as loader:
        for epoch in range(EPOCHS):
            found = []
            for batch in loader:
                assert all(each.device == bench.backend.device for each in batch)
                # Dropped at once, as any loop does: its memory, and its slot, go to others.
                found.append([bench.read(each) for each in batch])
                del batch
            assert equal([[each() for each in batch] for batch in found], expected(epoch))
        assert loader.stats()["memory"] == "registered"
        assert loader.stats()["registered_slots"] == 6


def test_a_late_consumer_finds_what_it_was_given(bench):
    """Its kernels begin long after next() has handed out the batches behind them."""
    with loader_of(Numbers(100), device=bench.name) as loader:
        bench.delay()
        found = [[bench.read(each) for each in batch] for batch in loader]
        assert equal([[each() for each in batch] for batch in found], expected(0))


@pytest.mark.parametrize("transformed", [False, True])
def test_other_current_streams(bench, transformed):
    """One of which is late, in every order: what it has yet to read is no other batch's memory."""
    transform = bench.adding(lambda: torch.zeros((), dtype=torch.int64)) if transformed else None
    for turns in ([0, 1, 2], [0, 0, 0, 0, 1, 1, 1, 1, 2], [0, 1], [0]):
        with loader_of(Numbers(100), device=bench.name, device_transform=transform) as loader:
            streams = [bench.backend.new_stream() for _ in range(3)]
            found = []
            iterator = iter(loader)
            bench.delay(streams[0])
            for place in range(25):
                with bench.backend.on(streams[turns[place % len(turns)]]):
                    found.append([bench.read(each) for each in next(iterator)])
            assert equal([[each() for each in batch] for batch in found], expected(0))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_forked_child_may_collect_what_its_parent_had(bench):
    """As workers of a DataLoader beside us do. Memory that was lent to a stream would end it."""
    transform = bench.adding(lambda: torch.zeros((), dtype=torch.int64))
    with loader_of(Numbers(100), device=bench.name, device_transform=transform) as loader:
        iterator = iter(loader)
        gc.disable()
        try:
            for batch in itertools.islice(iterator, 5):
                garbage = [batch]
                garbage.append(garbage)
            del batch, garbage
            assert told_by(forked(lambda: gc.collect() > 0)) == "True"
        finally:
            gc.enable()


def test_batches_that_are_kept_stay_what_they_are(bench):
    with loader_of(Numbers(100), device=bench.name) as loader:
        batches = list(loader)
        assert equal([[bench.read(each)() for each in batch] for batch in batches], expected(0))


def test_what_is_registered_once_is_not_registered_again(bench):
    with loader_of(Numbers(200), device=bench.name) as loader:
        for _ in range(3):
            for _ in loader:
                pass
        if bench.is_fake:
            assert len(bench.fake.registrations) == 6


def test_at_most_one_slot_is_registered_in_each_next(bench):
    if not bench.is_fake:
        pytest.skip("a fake device counts them")
    with loader_of(Numbers(200), device=bench.name) as loader:
        counts = [0]
        for _ in loader:
            counts.append(len(bench.fake.registrations))
        assert all(after - before <= 1 for before, after in itertools.pairwise(counts))


@pytest.mark.parametrize("mode", ["staged", "pageable"])
def test_lower_rungs_of_the_ladder(bench, mode, shared_daemon):
    if not bench.is_fake:
        pytest.skip("a fake device refuses when it is told to")
    bench.fake.refuses = "cudaHostRegister: out of memory (error 2)"
    bench.fake.has_pinned_memory = mode == "staged"
    with loader_of(Numbers(100), device=bench.name) as loader:
        bench.delay()
        found = [[bench.read(each) for each in batch] for batch in loader]
        assert equal([[each() for each in batch] for batch in found], expected(0))
        stats = loader.stats()
        assert (stats["memory"], stats["registered_slots"]) == (mode, 0)
        assert stats["memory_error"] == bench.fake.refuses
        told = stream_when(shared_daemon, loader.spec.name, lambda stream: _modes(stream) == [mode], f"memory {mode}")
        assert told["ring"] is not None


def _modes(stream) -> list[str]:
    return [each["memory"] for each in stream["consumers"] if "memory" in each]


def test_breaking_off_and_going_on(bench):
    """What was copied ahead for an iterator that is dropped is read to its end all the same."""
    with loader_of(Numbers(100), device=bench.name) as loader:
        for epoch in range(4):
            bench.delay()
            read = [bench.read(each) for each in next(iter(loader))]
            assert equal([each() for each in read], expected(epoch)[0])


def test_the_end_of_a_loader_waits_for_its_copies(bench):
    loader = loader_of(Numbers(100), device=bench.name)
    bench.delay()
    batch = next(iter(loader))
    read = [bench.read(each) for each in batch]
    loader.close()
    assert equal([each() for each in read], expected(0)[0])


def test_the_position_is_that_of_what_was_yielded(bench):
    with loader_of(Numbers(100), device=bench.name) as loader:
        iterator = iter(loader)
        for step in range(1, 4):
            next(iterator)
            assert (loader.state_dict()["epoch"], loader.state_dict()["step"]) == (0, step)
        state = loader.state_dict()
    with loader_of(Numbers(100), device=bench.name) as again:
        again.load_state_dict(state)
        found = [[bench.read(each) for each in batch] for batch in again]
        assert equal([[each() for each in batch] for batch in found], expected(0)[3:])


def test_an_error_ahead_comes_in_its_turn(bench):
    with PrefetchLoader(Made(_fails_at_17), batch_size=4, buffer=6, device=bench.name) as loader:
        iterator, found = iter(loader), []
        for place in range(6):
            if place == 4:
                with pytest.raises(ZeroDivisionError):
                    next(iterator)
            else:
                found.append(bench.read(next(iterator)))
        assert [each()[0].item() for each in found] == [0, 4, 8, 12, 20]
        with pytest.raises(StopIteration):
            next(iterator)


def _fails_at_17(index: int) -> int:
    return index // (index != 17)


def test_a_transform_that_raises_comes_in_its_turn(bench):
    count = itertools.count()

    def transform(batch):
        if next(count) == 2:
            raise ZeroDivisionError("the third")
        return batch

    with loader_of(Numbers(100), device=bench.name, device_transform=transform) as loader:
        iterator, found = iter(loader), []
        for place in range(25):
            if place == 2:
                with pytest.raises(ZeroDivisionError, match="the third"):
                    next(iterator)
                assert loader.state_dict()["step"] == 2
            else:
                found.append([bench.read(each) for each in next(iterator)])
        wanted = expected(0)
        assert equal([[each() for each in batch] for batch in found], [*wanted[:2], *wanted[3:]])


def test_a_transform_draws_the_same_in_every_run(bench):
    before = torch.get_rng_state(), bench.backend.generator().get_state()
    transform = bench.adding(lambda: torch.randint(0, 1000, (4, 4)))
    runs = []
    for _ in range(2):
        with loader_of(Numbers(100), device=bench.name, device_transform=transform) as loader:
            found = [bench.read(each[0]) for _ in range(EPOCHS) for each in loader]
            runs.append([each() for each in found])
    assert equal(*runs)
    assert torch.equal(bench.backend.generator().get_state(), before[1])
    # An iterator draws its base seed there, as DataLoader's; the transform draws nothing.
    left = torch.get_rng_state()
    torch.set_rng_state(before[0])
    with loader_of(Numbers(100), device=bench.name) as loader:
        for _ in range(2 * EPOCHS):
            iter(loader)
    assert torch.equal(torch.get_rng_state(), left)
    plain = [batch[0] for epoch in range(EPOCHS) for batch in expected(epoch)]
    draws = {tuple((one - other).flatten().tolist()) for one, other in zip(runs[0], plain)}
    assert len(draws) == len(plain), "two batches had the same draws"


def test_a_transform_begins_where_its_batch_does_after_a_resume(bench):
    transform = bench.adding(lambda: torch.randint(0, 1000, (4, 4)))
    with loader_of(Numbers(100), device=bench.name, device_transform=transform) as loader:
        whole = [read() for read in [bench.read(each[0]) for each in loader]]
    with loader_of(Numbers(100), device=bench.name, device_transform=transform, fresh=True) as loader:
        loader.load_state_dict({**loader.state_dict(), "epoch": 0, "step": 7})
        rest = [read() for read in [bench.read(each[0]) for each in loader]]
    assert equal(whole[7:], rest)


def test_two_iterators_of_one_loader(bench):
    with loader_of(Numbers(100), device=bench.name, buffer=8) as loader:
        found = [([bench.read(x) for x in one], [bench.read(x) for x in other]) for one, other in zip(loader, loader)]
        for place, (one, other) in enumerate(found):
            assert equal([each() for each in one], expected(0)[place])
            assert equal([each() for each in other], expected(1)[place])


def test_next_is_refused_while_a_graph_is_captured(bench):
    with loader_of(Numbers(100), device=bench.name) as loader:
        iterator = iter(loader)
        first = bench.read(next(iterator)[0])
        if bench.is_fake:
            bench.fake.capturing = True
            with pytest.raises(CallerError, match="while a CUDA graph is captured"):
                next(iterator)
            bench.fake.capturing = False
        else:
            graph, static = torch.cuda.CUDAGraph(), torch.zeros(1, device="cuda")
            with torch.cuda.graph(graph):
                static.add_(1)
                with pytest.raises(CallerError, match="while a CUDA graph is captured"):
                    next(iterator)
        second = bench.read(next(iterator)[0])
        assert equal([first(), second()], [batch[0] for batch in expected(0)[:2]])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_graph_is_replayed_on_each_batch():
    with loader_of(Numbers(100), device="cuda") as loader:
        static, found = torch.zeros(4, 4, dtype=torch.int64, device="cuda"), []
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            doubled = static * 2
        for numbers, _ in loader:
            static.copy_(numbers)
            graph.replay()
            found.append(doubled.clone())
        assert equal([each.cpu() for each in found], [batch[0] * 2 for batch in expected(0)])


def test_without_a_daemon(bench, monkeypatch):
    monkeypatch.setenv("PREFETCHD_INLINE", "1")
    for arguments in ({"device": bench.name}, {"pin_memory": True}):
        with loader_of(Numbers(100), **arguments) as loader:
            found = []
            for batch in loader:
                batch = batch if "device" in arguments else [bench.to_device(each) for each in batch]
                found.append([bench.read(each) for each in batch])
            assert equal([[each() for each in batch] for batch in found], expected(0))
            assert loader.stats()["memory"] == "staged"


def test_a_loader_keeps_its_device_when_it_is_pickled(bench):
    with loader_of(Numbers(100), device=bench.name, device_transform=len) as loader:
        kind, arguments = loader.__reduce__()
        with kind(*arguments) as again:
            assert (again.device, again.device_transform) == (bench.name, len)
            assert again.spec.minimum_slots == 6


def test_a_ring_for_a_device_has_six_slots_or_more(bench):
    with pytest.raises(CallerError, match="buffer=4 batches; allowed: 6"):
        loader_of(Numbers(100), device=bench.name, buffer=4)
