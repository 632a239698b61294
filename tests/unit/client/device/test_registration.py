"""Slots are registered one in each next(), never twice, and unregistered before they are unmapped."""

from __future__ import annotations

import os
import threading

import pytest
from prefetchd_client.batches.attachment import Attachment
from prefetchd_client.device.cudart import CheckedCudart
from prefetchd_client.device.pins import RingPins
from prefetchd_client.device.registration import RingRegistration

from prefetchd.ring.segment import RingSegment, new_header
from prefetchd.wire.segment_layout import decode_memory_mode
from prefetchd.wire.stream_spec import encode_spec
from tests.unit.client.device.fake_cudart import FakeCudart
from tests.unit.client.device.fake_device import FakeDevice
from tests.unit.wire.golden.examples import BARE_SPEC

BASE, SLOTS, SLOT_BYTES = 1 << 40, 4, 8192


class Calls:
    """A backend that only notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []
        self.answers: list[str] = []
        self.meanwhile = lambda: None
        self.at_unregister = lambda: None

    def register(self, address: int, size: int) -> str:
        assert size == SLOT_BYTES
        self.told.append(("register", (address - BASE) // SLOT_BYTES))
        self.meanwhile()
        return self.answers.pop(0) if self.answers else ""

    def unregister(self, address: int) -> str:
        self.told.append(("unregister", (address - BASE) // SLOT_BYTES))
        self.at_unregister()
        return ""


@pytest.fixture
def calls():
    return Calls()


@pytest.fixture
def registration(calls):
    return RingRegistration(calls, BASE, SLOTS, SLOT_BYTES)


def place(slot: int) -> int:
    return BASE + slot * SLOT_BYTES + 100


def test_one_slot_in_each_next(calls, registration):
    assert not registration.pinned(place(0)), "no next() has begun"
    registration.begin()
    assert [registration.pinned(place(slot)) for slot in (2, 1, 2)] == [True, False, True]
    registration.begin()
    assert [registration.pinned(place(slot)) for slot in (2, 1)] == [True, True]
    assert calls.told == [("register", 2), ("register", 1)]


@pytest.mark.parametrize("address", [0, BASE - 1, BASE + SLOTS * SLOT_BYTES])
def test_what_is_not_in_the_ring(calls, registration, address):
    registration.begin()
    assert not registration.pinned(address)
    assert calls.told == []


def test_the_first_failure_ends_it(calls, registration):
    calls.answers = ["", "out of memory"]
    for slot in range(SLOTS):
        registration.begin()
        registration.pinned(place(slot))
    assert calls.told == [("register", 0), ("register", 1)]
    assert (registration.error, registration.count) == ("out of memory", 1)
    assert registration.pinned(place(0)), "what is registered stays so"
    registration.close()
    assert calls.told[2:] == [("unregister", 0)], "what was never registered is not unregistered"


def test_closing_twice(calls, registration):
    registration.begin()
    registration.pinned(place(3))
    registration.close()
    registration.close()
    registration.begin()
    assert not registration.pinned(place(3))
    assert calls.told == [("register", 3), ("unregister", 3)]


def test_a_finalizer_that_closes_while_a_slot_is_registered(calls, registration):
    calls.meanwhile = registration.close
    registration.begin()
    assert not registration.pinned(place(1))
    assert calls.told == [("register", 1), ("unregister", 1)]


class Watched:
    """The ring's lock, which tells when somebody does not get it at once."""

    def __init__(self, lock) -> None:
        self.refused = threading.Event()
        self._lock = lock

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.refused.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_another_thread_that_closes_waits_for_the_slot_that_is_registered(calls, registration):
    lock = registration._lock = Watched(registration._lock)
    closing = threading.Thread(target=registration.close)

    def close_meanwhile() -> None:
        closing.start()
        assert lock.refused.wait(30), "nobody holds the lock while a slot is registered"
        assert closing.is_alive()

    calls.meanwhile = close_meanwhile
    registration.begin()
    assert registration.pinned(place(1)), "closed before its slot was noted"
    closing.join()
    assert calls.told == [("register", 1), ("unregister", 1)]


def test_another_thread_registers_nothing_more_while_one_closes(calls, registration):
    lock = registration._lock = Watched(registration._lock)
    registering = threading.Thread(target=registration.pinned, args=(place(2),))
    registration.begin()
    registration.pinned(place(1))
    registration.begin()

    def register_meanwhile() -> None:
        registering.start()
        assert lock.refused.wait(30), "nobody holds the lock while slots are unregistered"

    calls.at_unregister = register_meanwhile
    registration.close()
    registering.join()
    assert calls.told == [("register", 1), ("unregister", 1)]


# --- with a ring ---


@pytest.fixture
def ring():
    spec = encode_spec(BARE_SPEC)
    header = new_header(6, 4096, "0" * 32, 1, spec, b"", "")
    found = RingSegment.create(f"/prefetchd-test-ring-{os.getpid():x}", header, spec, b"", 6)
    yield found
    found.close()


def pinned_attachment(ring, device: FakeDevice, *, fenced: bool) -> Attachment:
    attachment = Attachment(os.dup(ring.shared_fd), 2, 1)
    attachment.pins = RingPins(device, attachment.ring, attachment.note_memory, fenced=fenced)
    return attachment


def mode_in(ring) -> str:
    return decode_memory_mode(memoryview(ring.memory.memory), ring.header.consumer_record_offset(2))


def test_the_mode_stands_in_the_consumer_s_record(ring):
    attachment = pinned_attachment(ring, FakeDevice(), fenced=True)
    assert mode_in(ring) == "registered"
    attachment.note_yield(1, 0, 1, 500)
    assert mode_in(ring) == "registered", "the rest of the record is written without it"
    attachment.pins.fall_to("pageable")
    assert mode_in(ring) == "pageable"
    attachment.close()
    Attachment(os.dup(ring.shared_fd), 2, 1).close()
    assert mode_in(ring) == "ordinary", "the next consumer's record is its own"


def test_a_forked_child_leaves_cuda_alone(ring, monkeypatch):
    device = FakeDevice()
    attachment = pinned_attachment(ring, device, fenced=True)
    address = attachment.pins._registration._base
    assert attachment.pins.pinned(address)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    attachment.close()
    assert list(device.registered) == [address], "what is the parent's was unregistered in its child"
    monkeypatch.undo()
    device.unregister(address)


@pytest.mark.parametrize(("refused", "registered"), [("read-only", 0), ("WSL", 2)])
def test_what_cuda_refuses_ends_it_and_no_later_kernel_is_blamed(ring, refused, registered):
    """With the check of codes as it is, between a ring's pins and a fake cudart."""
    header = ring.header
    runtime = FakeCudart(2 * header.slot_bytes if refused == "WSL" else 1 << 40)
    device = FakeDevice()
    checked = CheckedCudart(runtime, runtime.take_last_error)
    device.register, device.unregister = checked.register, checked.unregister
    attachment = pinned_attachment(ring, device, fenced=True)
    pins = attachment.pins
    places = [pins._registration._base + slot * header.slot_bytes for slot in range(header.slots)]
    if refused == "read-only":
        runtime.read_only.update(places)
    found = []
    for at in places:
        pins.begin()
        found.append(pins.pinned(at))
    assert found == [True] * registered + [False] * (header.slots - registered)
    assert (pins.mode, mode_in(ring), pins.registered_slots) == ("staged", "staged", registered)
    assert pins.error.startswith("cudaHostRegister: cudaError")
    assert runtime.calls == ["register"] * (registered + 1), "what was refused once is not asked for again"
    runtime.launch()
    attachment.close()
    assert runtime.registered == {}
    runtime.launch()
