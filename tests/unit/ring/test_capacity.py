"""How many slots a ring gets: never more than was asked for or than there is, and errors that can be acted upon."""

from __future__ import annotations

import re

import hypothesis.strategies as st
import pytest
from hypothesis import assume, example, given

from prefetchd.ring.capacity import (
    DEFAULT_BUFFER_BYTES,
    GROWTH,
    SLOTS_A_REMOTE_WORKER,
    Bounds,
    Room,
    aligned_slot_bytes,
    bounds_for,
    check_growth,
    check_step,
    default_buffer_bytes,
    ring_bytes,
    roomy_slot_bytes,
    slots_for,
)
from prefetchd.wire.byte_sizes import parse_bytes
from prefetchd.wire.errors import BufferTooSmallError, NoSpaceError
from prefetchd.wire.segment_layout import PAGE_BYTES, SLOTS_LIMIT
from prefetchd.wire.stream_spec import StreamSpec
from tests.budgets import tries

MIB = 1 << 20
GIB = 1 << 30
PLENTY = Room(1 << 50)

slot_sizes = st.integers(1, 1 << 14).map(lambda pages: pages * PAGE_BYTES)


def spec(**service: int) -> StreamSpec:
    return StreamSpec("0" * 32, seed=0, order="sequential", length=1, batch_size=1, **service)


# --- slots ---


@given(st.integers(1, 1 << 41), slot_sizes)
@example(5513216, 4096)
@tries(200)
def test_bytes_hold_as_many_slots_as_fit_and_no_more(buffer_bytes, slot_bytes):
    try:
        slots = slots_for(spec(buffer_bytes=buffer_bytes, minimum_slots=1), slot_bytes, slot_bytes, PLENTY)
    except BufferTooSmallError:
        assert ring_bytes(1, slot_bytes) > buffer_bytes
        return
    assert ring_bytes(slots, slot_bytes) <= buffer_bytes
    assert slots == SLOTS_LIMIT or ring_bytes(slots + 1, slot_bytes) > buffer_bytes


@given(st.integers(4, 200_000), slot_sizes)
@tries(50)
def test_a_number_of_batches_is_taken_at_its_word(batches, slot_bytes):
    assert slots_for(spec(buffer_batches=batches), slot_bytes, slot_bytes, PLENTY) == min(batches, SLOTS_LIMIT)


def test_the_default_is_the_least_of_a_gibibyte_and_shares_of_what_there_is():
    assert default_buffer_bytes(Room(100 * GIB)) == DEFAULT_BUFFER_BYTES == GIB
    assert default_buffer_bytes(Room(2 * GIB)) == GIB // 2
    assert default_buffer_bytes(Room(100 * GIB, memory_bytes=400 * MIB)) == 100 * MIB
    assert default_buffer_bytes(Room(100 * GIB, memory_bytes=400 * MIB, budget_bytes=30 * MIB)) == 15 * MIB
    assert default_buffer_bytes(Room(0, memory_bytes=400 * MIB)) == 0


@given(st.integers(0, 1 << 36), st.none() | st.integers(0, 1 << 36), st.none() | st.integers(0, 1 << 36), slot_sizes)
@tries(100)
def test_the_default_always_finds_room(store, memory, budget, slot_bytes):
    room = Room(store, memory_bytes=memory, budget_bytes=budget)
    least_bytes = ring_bytes(4, slot_bytes)
    limits = [each for each in (store, memory, budget) if each is not None]
    if least_bytes > min(limits):
        with pytest.raises(NoSpaceError, match=r"the smallest ring, 4 batches of .* use smaller batches, or") as caught:
            slots_for(spec(), slot_bytes, slot_bytes, room)
        assert least_bytes - caught.value.short_bytes in limits, "so much more would do"
        return
    slots = slots_for(spec(), slot_bytes, slot_bytes, room)
    assert slots >= 4
    assert ring_bytes(slots, slot_bytes) <= max(default_buffer_bytes(room), least_bytes)


@given(st.integers(1, 1 << 40))
def test_slots_are_whole_pages(size):
    assert aligned_slot_bytes(size) % PAGE_BYTES == 0
    assert 0 <= aligned_slot_bytes(size) - size < PAGE_BYTES


def bounds(slots: int, slot_bytes: int = 1 << 20, room: Room = PLENTY, whole: Room = PLENTY, **asked):
    found = bounds_for(spec(**asked), slots, slot_bytes, room, whole)
    return found.usual, found.most


def test_a_ring_may_grow_unless_it_was_bounded_in_bytes():
    assert bounds(10, buffer_batches=10)[0] == 10 * GROWTH
    assert bounds(10, buffer_bytes=GIB) == (10, 10)
    assert bounds_for(spec(buffer_bytes=GIB), 10, MIB, PLENTY, PLENTY).why == "buffer=1,024.0 MiB. Raise buffer="
    usual, most = bounds(10, 1 << 16)
    assert 10 < usual <= DEFAULT_BUFFER_BYTES >> 16
    assert most == SLOTS_LIMIT


@pytest.mark.parametrize(
    ("whole", "why"),
    [
        (Room(100 * MIB), "/dev/shm is 100.0 MiB large. Enlarge /dev/shm (docker: --shm-size)"),
        (Room(GIB, memory_bytes=100 * MIB), "the daemon's cgroup has a memory limit of 100.0 MiB. Raise it"),
        (Room(GIB, budget_bytes=100 * MIB), "the daemon's memory setting is 100.0 MiB. Raise --memory"),
        (Room(GIB, mapped_bytes=100 * MIB), "the daemon's limits (ulimit -a) allow 100.0 MiB. Raise them"),
    ],
)
def test_how_far_it_may_grow_for_one_batch_is_what_there_is_in_all(whole, why):
    now = Room(30 * MIB, memory_bytes=20 * MIB)
    found = bounds_for(spec(), 10, MIB, now, whole)
    assert found == Bounds(10, 100, why), "usually no further than there is room now"
    assert bounds_for(spec(buffer_batches=4), 4, MIB, now, whole) == Bounds(64, 100, why)
    assert bounds_for(spec(), 200, MIB, now, whole).most == 200, "what it has been given it has"
    assert bounds_for(spec(), 10, 4096, now, PLENTY).why.startswith("a ring has 65536 slots at most, and the first")


def test_small_slots_become_larger_as_long_as_that_takes_little():
    assert roomy_slot_bytes(4096, 12) == 64 << 10
    assert roomy_slot_bytes(4096, 1000) == 16 << 10
    assert roomy_slot_bytes(4096, 100_000) == 4096
    assert roomy_slot_bytes(MIB, 12) == MIB


# --- errors ---


def test_too_small_a_buffer_is_told_with_its_sizes_and_what_would_do():
    with pytest.raises(BufferTooSmallError) as caught:
        slots_for(spec(buffer_bytes=100 * MIB), 30 * MIB - 100, 30 * MIB, PLENTY)
    text = str(caught.value)
    assert text.startswith("buffer=100.0 MiB holds 3 batches of 30.0 MiB (30.0 MiB a slot); allowed: at least 4.")
    assert "Set buffer= to 122.0 MiB or more" in text


@given(st.integers(1, 1 << 33), slot_sizes, st.integers(1, 20))
@tries(200)
def test_what_the_error_says_would_do_does(buffer_bytes, slot_bytes, minimum):
    assume(ring_bytes(minimum, slot_bytes) > buffer_bytes)
    with pytest.raises(BufferTooSmallError) as caught:
        slots_for(spec(buffer_bytes=buffer_bytes, minimum_slots=minimum), slot_bytes, slot_bytes, PLENTY)
    holds = int(re.search(r"holds (-?\d+) batches", str(caught.value))[1])
    assert 0 <= holds < minimum
    suggested = re.search(r"Set buffer= to (.*) or more", str(caught.value))[1]
    enough = spec(buffer_bytes=parse_bytes(suggested, "buffer"), minimum_slots=minimum)
    assert slots_for(enough, slot_bytes, slot_bytes, PLENTY) >= minimum


@pytest.mark.parametrize(
    ("room", "told"),
    [
        (Room(50 * MIB), "/dev/shm has 50.0 MiB left: lower buffer=, or enlarge /dev/shm (docker: --shm-size)"),
        (Room(GIB, store="/mnt/ram"), None),
        (Room(50 * MIB, store="/mnt/ram"), "/mnt/ram has 50.0 MiB left: lower buffer=, or enlarge /mnt/ram"),
        (Room(GIB, memory_bytes=60 * MIB), "the cgroup has 60.0 MiB left"),
        (Room(GIB, budget_bytes=70 * MIB), "the daemon's memory setting has 70.0 MiB left"),
        (Room(GIB, memory_bytes=GIB, budget_bytes=GIB), None),
    ],
)
@pytest.mark.parametrize("asked", [{"buffer_batches": 10}, {"buffer_bytes": 102 * MIB}])
def test_no_room_is_told_with_what_is_short_and_what_to_turn(room, told, asked):
    if told is None:
        assert slots_for(spec(**asked), 10 * MIB, 10 * MIB, room) == 10
        return
    with pytest.raises(NoSpaceError) as caught:
        slots_for(spec(**asked), 10 * MIB, 10 * MIB, room)
    text = str(caught.value)
    assert text.startswith("buffer=10 batches needs" if "buffer_batches" in asked else "buffer=102.0 MiB needs")
    assert "needs 102.0 MiB; " in text
    assert told in text
    assert "lower buffer=" in text


@pytest.mark.parametrize(("epoch_steps", "slots"), [(None, 256), (1000, 256), (128, 256), (100, 200), (20, 40), (3, 8)])
def test_the_default_is_no_more_than_two_epochs(epoch_steps, slots):
    found = slots_for(spec(), 4 * MIB - 8192, 4 * MIB - 8192, PLENTY, epoch_steps)
    assert found == slots


def test_remote_workers_have_room_beside_what_the_default_holds_without_them():
    slot_bytes = 39 * MIB

    def slots(remote_workers: int, room: Room = PLENTY, epoch_steps: int = 10_000) -> int:
        return slots_for(spec(remote_workers=remote_workers), slot_bytes, slot_bytes, room, epoch_steps)

    assert slots(32) - slots(0) == SLOTS_A_REMOTE_WORKER * 32
    assert bounds_for(spec(remote_workers=32), slots(32), slot_bytes, PLENTY, PLENTY).usual == slots(32)
    # Still no more than its share of what there is, and no more than two epochs.
    assert slots(1000, Room(4 * GIB)) == GIB // slot_bytes
    assert slots(32, epoch_steps=20) == 40


def test_what_is_asked_for_may_be_any_number_of_epochs():
    assert slots_for(spec(buffer_batches=500), 4096, 4096, PLENTY, 3) == 500
    assert slots_for(spec(buffer_bytes=MIB), 4096, 4096, PLENTY, 3) > 200


def test_small_sizes_are_told_as_what_they_are():
    with pytest.raises(BufferTooSmallError, match=r"buffer=900 bytes holds 0 batches of 4.0 KiB"):
        slots_for(spec(buffer_bytes=900), 4096, 4096, PLENTY)


# --- growing ---


def test_a_ring_grows_within_the_budget():
    check_growth(10 * MIB, 5 * MIB, Room(GIB, budget_bytes=5 * MIB))
    with pytest.raises(NoSpaceError, match=r"memory setting has 5\.0 MiB left: raise --memory") as caught:
        check_growth(10 * MIB, 6 * MIB, Room(GIB, budget_bytes=5 * MIB))
    assert caught.value.short_bytes == MIB


def test_a_ring_that_grows_leaves_as_much_of_the_cgroup_as_it_has():
    check_growth(10 * MIB, 45 * MIB, Room(GIB, memory_bytes=100 * MIB))
    with pytest.raises(NoSpaceError, match=r"the cgroup has 100\.0 MiB left: raise the memory limit") as caught:
        check_growth(10 * MIB, 46 * MIB, Room(GIB, memory_bytes=100 * MIB))
    assert caught.value.short_bytes == MIB
    with pytest.raises(NoSpaceError):
        check_growth(10 * MIB, 1, Room(GIB, memory_bytes=0))


def test_a_ring_that_is_not_to_be_had_whole_takes_nothing():
    check_growth(10 * MIB, 5 * MIB, Room(5 * MIB))
    with pytest.raises(NoSpaceError, match=r"/dev/shm has 5\.0 MiB left: enlarge /dev/shm") as caught:
        check_growth(10 * MIB, 6 * MIB, Room(5 * MIB))
    assert caught.value.short_bytes == MIB


def test_without_limits_a_ring_grows():
    check_growth(GIB, GIB, PLENTY)
    check_step(GIB, None)


def test_a_step_is_within_what_the_cgroup_has_left():
    check_step(MIB, MIB)
    with pytest.raises(NoSpaceError, match=r"the cgroup has 1\.0 MiB left: lower buffer=") as caught:
        check_step(MIB + 1, MIB)
    assert caught.value.short_bytes == 1
