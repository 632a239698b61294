"""A device that fails once, or for good, or refuses to register more: no batch is another one, and nothing is left."""

from __future__ import annotations

import gc
import itertools

import pytest

from tests.scenario.datasets import Numbers, equal
from tests.scenario.device_streams import copied_by_the_holder, expected, loader_of, wait_until_full
from tests.scenario.waiting import stream_when
from tests.unit.client.device.fake_device import FakeEvent

pytestmark = pytest.mark.usefixtures("shared_daemon")


@pytest.fixture(autouse=True)
def _only_a_fake_device_fails_when_it_is_told_to(bench):
    if not bench.is_fake:
        pytest.skip("a fake device fails when it is told to")


def lost(*_: object) -> None:
    raise RuntimeError("CUDA error: the device is lost")


def fails_once(monkeypatch, owner, name: str, place: int) -> None:
    """The call `place` of `name` raises, counted from 0."""
    counts, call = itertools.count(), getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda *rest: (lost if next(counts) == place else call)(*rest))


def read_all(bench, loader, later=None):
    """One epoch's batches, and the places of those in whose stead next() raised; there the loader stands as before.
    After the first next(), the stream `later` is current."""
    iterator, found, failed = iter(loader), [], []
    current = bench.backend.current_stream()
    for place in itertools.count():
        before = loader.state_dict()
        with bench.backend.on(later if later is not None and place else current):
            try:
                batch = next(iterator)
            except StopIteration:
                break
            except RuntimeError:
                failed.append(place)
                assert loader.state_dict() == before, "a batch that failed was not yielded"
            else:
                found.append([bench.read(each) for each in batch])
    return [[each() for each in batch] for batch in found], failed


@pytest.mark.parametrize(
    ("call", "place"),
    # Of two tensors each batch; it is recorded twice, waited for twice.
    [("empty_like", 9), ("copy", 8), ("copy", 9), ("record", 8), ("record", 9), *(("wait", at) for at in range(8, 12))],
)
def test_one_failure_fails_one_batch_in_its_turn(bench, monkeypatch, call, place):
    fails_once(monkeypatch, bench.fake, call, place)
    with loader_of(Numbers(100), device=bench.name) as loader:
        found, failed = read_all(bench, loader)
        assert len(failed) == 1
        wanted = expected(0)
        assert equal(found, wanted[: failed[0]] + wanted[failed[0] + 1 :])
        found, failed = read_all(bench, loader)
        assert (equal(found, expected(1)), failed) == (True, [])


def test_a_batch_that_cannot_be_handed_out_was_not_yielded(bench, monkeypatch, shared_daemon):
    fails_once(monkeypatch, bench.fake, "lend", 1)
    with loader_of(Numbers(100), device=bench.name) as loader:
        read_all(bench, loader)
        wait_until_full(shared_daemon, loader)
        found, failed = read_all(bench, loader, bench.backend.new_stream())
        assert failed == [1], "it was copied ahead for another stream"
        assert equal(found, expected(1)[:1] + expected(1)[2:])


def test_a_batch_that_failed_is_let_go_with_its_error(bench, monkeypatch, shared_daemon):
    """And not when the garbage collector comes round: its slot would be held until then."""
    with loader_of(Numbers(100), device=bench.name) as loader:
        read_all(bench, loader)
        wait_until_full(shared_daemon, loader)
        fails_once(monkeypatch, bench.fake, "copy", 2)
        gc.collect()
        gc.disable()
        try:
            _, failed = read_all(bench, loader)
            assert failed == [1], "it was fetched ahead"
            loader.close()
            assert bench.fake.registered == {}
        finally:
            gc.enable()


def test_an_event_that_cannot_be_asked_costs_no_batch(bench, monkeypatch):
    fails_once(monkeypatch, FakeEvent, "query", 6)
    with loader_of(Numbers(100), device=bench.name) as loader:
        found, failed = read_all(bench, loader)
        assert len(failed) == 1
        assert equal(found, expected(0))


@pytest.mark.parametrize("call", ["query", "synchronize", "record"])
def test_pinned_batches_are_what_they_are_when_an_event_cannot_be_had(bench, monkeypatch, call):
    """They are the holder's to copy: it is told by its own calls, and loses no batch by the loader's."""
    with loader_of(Numbers(400), pin_memory=True) as loader:
        for epoch in range(2):
            fails_once(monkeypatch, bench.fake if call == "record" else FakeEvent, call, 6)
            bench.delay()
            assert equal(copied_by_the_holder(bench, loader), expected(epoch, 400))
            monkeypatch.undo()


@pytest.mark.parametrize("way", ["device", "pin_memory"])
def test_a_loader_ends_when_its_device_is_lost(bench, monkeypatch, way):
    loader = loader_of(Numbers(100), **{way: bench.name if way == "device" else True})
    iterator = iter(loader)
    for _ in range(3):
        next(iterator)
    with monkeypatch.context() as patched:
        for owner, name in itertools.product((FakeEvent, bench.fake), ("query", "record", "synchronize")):
            patched.setattr(owner, name, lost, raising=False)
        failed = 0
        for place in range(3, 10):
            try:
                batch = next(iterator)
            except RuntimeError:
                failed += 1
            else:
                assert way == "device" or equal([each.clone() for each in batch], expected(0)[place])
        if way == "device":
            assert failed >= 5, "all but what was ahead"
        else:
            assert failed == 0, "what is in pinned memory is told by its holder's own calls"
            del batch
        loader.close()
        assert bench.fake.registered == {}


@pytest.mark.parametrize("way", ["device", "pin_memory"])
def test_what_is_registered_before_a_refusal_stays_so(bench, monkeypatch, shared_daemon, way):
    register = bench.fake.register

    def register_two(address: int, size: int) -> str:
        bench.fake.refuses = "no more" if len(bench.fake.registered) == 2 else ""
        return register(address, size)

    monkeypatch.setattr(bench.fake, "register", register_two)
    with loader_of(Numbers(100), **{way: bench.name if way == "device" else True}) as loader:
        for epoch in range(3):
            bench.delay()
            found = []
            for batch in loader:
                assert way == "device" or all(bench.is_pinned(each) for each in batch)
                found.append([bench.read(x if way == "device" else bench.to_device(x)) for x in batch])
                del batch
            assert equal([[each() for each in batch] for batch in found], expected(epoch))
        stats = loader.stats()
        assert (stats["memory"], stats["registered_slots"], stats["memory_error"]) == ("staged", 2, "no more")
        stream_when(
            shared_daemon,
            loader.spec.name,
            lambda stream: [each.get("memory") for each in stream["consumers"]] == ["staged"],
            "its memory is staged",
        )
    assert len(bench.fake.registrations) == 2
