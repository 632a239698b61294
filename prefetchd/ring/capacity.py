"""Computes how many slots a ring gets: arithmetic on what was asked and what there is. Pure. The rules, whose reasons
are in decisions 0010 and 0091:

1. What was asked for decides (`slots_for`). In batches, that many slots. In bytes, as many as a segment of that length
   holds, records and marks included. If nothing was asked for, as many as `default_buffer_bytes` hold, which is more
   where remote workers were asked for, whose batches are far ahead (decision 0120); but for no more than DEFAULT_EPOCHS
   epochs, UNKNOWN_EPOCH_STEPS standing in for an unknown length: what lies further ahead is work
   for nothing as soon as the run ends. LEAST_DEFAULT_SLOTS are allowed for short epochs too. Where the default is no
   more than the smallest ring takes, the ring has its minimum.
2. A ring has `minimum_slots` at least, else the buffer is too small; and SLOTS_LIMIT at most.
3. It must fit what there is now, in the store, the cgroup and the daemon's memory setting. It is not made smaller to
   fit: the caller gets an error that names the knob.
4. A ring whose buffer was asked for in bytes never grows. Others grow up to `usual` as their batches turn out to be
   larger, and up to `most` if a single batch cannot do with less (`bounds_for`). `most` is what there is in all: what
   is in use today may be free when that batch comes. `usual` is GROWTH times the slots that were asked for in batches,
   else what the default holds by what there is now; never more than `most`.
5. A growth must fit the store and the memory setting. Of the cgroup's memory it leaves as much as the ring then has:
   larger batches take more in the workers too, and the kernel kills for what is beyond the limit (`check_growth`).
6. Slots are whole pages (decision 0003). Where a ring may grow, small slots become larger while all of them together
   stay small, so that a much larger batch takes fewer (`roomy_slot_bytes`).
"""

from __future__ import annotations

import dataclasses
import math

from prefetchd.wire.errors import BufferTooSmallError, NoSpaceError
from prefetchd.wire.runtime_paths import SHARED_MEMORY
from prefetchd.wire.segment_layout import PAGE_BYTES, SLOTS_LIMIT, SegmentHeader
from prefetchd.wire.stream_spec import StreamSpec

DEFAULT_BUFFER_BYTES = 1 << 30
DEFAULT_SHARE = 4
BUDGET_SHARE = 2
DEFAULT_EPOCHS = 2
UNKNOWN_EPOCH_STEPS = 1024
LEAST_DEFAULT_SLOTS = 8
SLOTS_A_REMOTE_WORKER = 5
"""Two for its tasks, and those that come before while they are under way: by what docs/cluster.md computes, with no
more workers here than there, 4.5."""
GROWTH = 16
ROOMY_SLOT_BYTES = 64 << 10
ROOMY_BYTES = 16 << 20


@dataclasses.dataclass(frozen=True)
class Room:
    """The room that a ring may take, in bytes. `store` names the file system, `memory` is that of the cgroup (None
    without a limit), `budget` the daemon's own `memory` setting (None without one), and `mapped` how long a file or
    mapping may be (None without a limit). For a new ring, or one that grows, it is what there is now; for Bounds what
    there is in all, whoever has it now."""

    store_bytes: int
    store: str = SHARED_MEMORY
    memory_bytes: int | None = None
    budget_bytes: int | None = None
    mapped_bytes: int | None = None

    def bound(self) -> tuple[int, str]:
        """Returns the least of what there is in all, and what it is and how to raise it, for people."""
        found = [
            (self.store_bytes, f"{self.store} is {_mib(self.store_bytes)} large. Enlarge {_named(self.store)}"),
            (
                self.memory_bytes,
                f"the daemon's cgroup has a memory limit of {_mib(self.memory_bytes or 0)}. Raise it",
            ),
            (self.budget_bytes, f"the daemon's memory setting is {_mib(self.budget_bytes or 0)}. Raise --memory"),
            (self.mapped_bytes, f"the daemon's limits (ulimit -a) allow {_mib(self.mapped_bytes or 0)}. Raise them"),
        ]
        return min(((limit, why) for limit, why in found if limit is not None), key=lambda each: each[0])


def measured_slot_bytes(batch_bytes: int, *, by_rows: bool, as_files: bool) -> int:
    """Returns the bytes of a slot for batches of which the first one takes `batch_bytes`; what comes may be somewhat
    longer, unless all rows have one layout."""
    if as_files:
        # A file is only as large as its batch, but slots count by their size. Texts in a file may be somewhat longer in
        # the next batch; larger batches take two slots.
        return batch_bytes * 17 // 16
    return batch_bytes if by_rows else batch_bytes * 5 // 4


def default_buffer_bytes(room: Room, remote_bytes: int = 0) -> int:
    """Returns the least of 1 GiB and `remote_bytes` (what remote workers need), a quarter of the free store, a quarter
    of the cgroup's headroom, and half of what the daemon's memory setting leaves: other loaders are to have a ring,
    too."""
    shares = [DEFAULT_BUFFER_BYTES + remote_bytes, room.store_bytes // DEFAULT_SHARE]
    if room.memory_bytes is not None:
        shares.append(room.memory_bytes // DEFAULT_SHARE)
    if room.budget_bytes is not None:
        shares.append(room.budget_bytes // BUDGET_SHARE)
    return min(shares)


def aligned_slot_bytes(slot_bytes: int) -> int:
    """Rounds up to whole pages: a batch of several slots is mapped page by page."""
    return -(-slot_bytes // PAGE_BYTES) * PAGE_BYTES


@dataclasses.dataclass(frozen=True)
class Bounds:
    """Slots that a ring may grow to (rule 4): `usual` and `most`. `why` says what `most` comes from and what to turn,
    for people."""

    usual: int
    most: int
    why: str = ""


def bounds_for(spec: StreamSpec, slots: int, slot_bytes: int, room: Room, whole: Room) -> Bounds:
    """Computes the bounds of a ring of `slots` by rule 4. `room` is what there is now, `whole` what there is in all."""
    # What the ring was measured by may have been a small batch, be it a row of a layout that others do not fit. A bound
    # in bytes holds all the same.
    if spec.buffer_bytes:
        return Bounds(slots, slots, f"buffer={_mib(spec.buffer_bytes)}. Raise buffer=")
    whole_bytes, why = whole.bound()
    most = max(slots, min(whole_bytes // slot_bytes, SLOTS_LIMIT))
    if most == SLOTS_LIMIT:
        why = f"a ring has {SLOTS_LIMIT} slots at most, and the first batch gave {_mib(slot_bytes)} to each"
    if spec.buffer_batches:
        usual = slots * GROWTH
    else:
        usual = max(slots, _slots_within(default_buffer_bytes(room, _remote_bytes(spec, slot_bytes)), slot_bytes))
    return Bounds(min(usual, most), most, why)


def roomy_slot_bytes(slot_bytes: int, slots: int) -> int:
    """Enlarges the slots of a ring of `slots` that may grow, by rule 6."""
    return max(slot_bytes, min(ROOMY_SLOT_BYTES, aligned_slot_bytes(ROOMY_BYTES // max(1, slots) - PAGE_BYTES + 1)))


def slots_for(spec: StreamSpec, batch_bytes: int, slot_bytes: int, room: Room, epoch_steps: int | None = None) -> int:
    """Computes the slots of the stream's ring by rules 1 to 3. `epoch_steps` is None when nobody knows them. Raises
    BufferTooSmallError or NoSpaceError, naming sizes and knob."""
    least_bytes = ring_bytes(spec.minimum_slots, slot_bytes)
    lower = "lower buffer="
    if spec.buffer_batches:
        slots = spec.buffer_batches
        asked = f"buffer={slots} batches"
    elif spec.buffer_bytes:
        slots = _slots_within(spec.buffer_bytes, slot_bytes)
        asked = f"buffer={_mib(spec.buffer_bytes)}"
    elif (default_bytes := default_buffer_bytes(room, _remote_bytes(spec, slot_bytes))) > least_bytes:
        slots = _slots_within(default_bytes, slot_bytes)
        steps = UNKNOWN_EPOCH_STEPS if epoch_steps is None else epoch_steps
        slots = min(slots, max(LEAST_DEFAULT_SLOTS, spec.minimum_slots, DEFAULT_EPOCHS * steps))
        asked = f"buffer={_mib(default_bytes)} (the default here)"
    else:
        # Its share of what is free does not hold the smallest ring; all of it may.
        slots = spec.minimum_slots
        asked = f"the smallest ring, {slots} batches of {_mib(batch_bytes)},"
        lower = "use smaller batches"
    if slots < spec.minimum_slots:
        raise BufferTooSmallError(
            f"{asked} holds {slots} batches of {_mib(batch_bytes)} ({_mib(slot_bytes)} a slot); allowed: at least "
            f"{spec.minimum_slots}. Set buffer= to {_mib_that_hold(least_bytes)} or more, or use smaller batches"
        )
    slots = min(slots, SLOTS_LIMIT)
    needed = ring_bytes(slots, slot_bytes)
    for what, limit, remedy in (
        (f"{room.store} has", room.store_bytes, f"enlarge {_named(room.store)}"),
        ("the cgroup has", room.memory_bytes, "raise the memory limit of the daemon's cgroup"),
        ("the daemon's memory setting has", room.budget_bytes, "raise --memory"),
    ):
        if limit is not None and needed > limit:
            text = f"{asked} needs {_mib(needed)}; {what} {_mib(limit)} left: {lower}, or {remedy}"
            raise NoSpaceError(text, needed - limit)
    return slots


def _remote_bytes(spec: StreamSpec, slot_bytes: int) -> int:
    return SLOTS_A_REMOTE_WORKER * spec.remote_workers * slot_bytes


def check_growth(ring_bytes: int, growth_bytes: int, room: Room) -> None:
    """Raises NoSpaceError when a ring of `ring_bytes` must not take `growth_bytes` more (rule 5)."""
    for what, left, allowed, remedy in (
        (f"{room.store} has", room.store_bytes, room.store_bytes, f"enlarge {_named(room.store)}"),
        ("the daemon's memory setting has", room.budget_bytes, room.budget_bytes, "raise --memory"),
        (
            "the cgroup has",
            room.memory_bytes,
            _beside(ring_bytes, room),
            "raise the memory limit of the daemon's cgroup",
        ),
    ):
        if left is not None and allowed is not None and growth_bytes > allowed:
            text = f"a ring of {_mib(ring_bytes)} wants {_mib(growth_bytes)} more; {what} {_mib(left)} left: {remedy}"
            raise NoSpaceError(text, growth_bytes - allowed)


def growth_bytes(ring_bytes: int, room: Room) -> int:
    """Returns the most that a ring of `ring_bytes` may take more (rule 5)."""
    limits = (room.store_bytes, room.budget_bytes, None if room.memory_bytes is None else _beside(ring_bytes, room))
    return max(0, min(limit for limit in limits if limit is not None))


def _beside(ring_bytes: int, room: Room) -> int:
    """Returns the largest growth that leaves as much of the cgroup's memory as the ring has then."""
    return ((room.memory_bytes or 0) - ring_bytes) // 2


def check_step(step_bytes: int, memory_bytes: int | None) -> None:
    """Raises NoSpaceError when the cgroup has less left than the next step of reserving takes."""
    if memory_bytes is not None and step_bytes > memory_bytes:
        raise NoSpaceError(
            f"the cgroup has {_mib(memory_bytes)} left: lower buffer=, or raise the memory limit of its daemon",
            step_bytes - memory_bytes,
        )


def ring_bytes(slots: int, slot_bytes: int) -> int:
    """Returns the bytes of the whole segment of a ring: records, marks and payloads."""
    return _header(slots, slot_bytes).segment_bytes


def _slots_within(buffer_bytes: int, slot_bytes: int) -> int:
    slots = min(buffer_bytes // slot_bytes, SLOTS_LIMIT)
    # Records and marks take well under a thousandth of a slot of a page and more; a few steps suffice.
    while slots > 0 and ring_bytes(slots, slot_bytes) > buffer_bytes:
        excess = ring_bytes(slots, slot_bytes) - buffer_bytes
        slots -= max(1, excess // (slot_bytes + 1024))
    # That went in whole pages of records and marks, and may have been one slot too far.
    while 0 <= slots < SLOTS_LIMIT and ring_bytes(slots + 1, slot_bytes) <= buffer_bytes:
        slots += 1
    return max(0, slots)


def _header(slots: int, slot_bytes: int) -> SegmentHeader:
    return SegmentHeader(slots, slot_bytes, 0, 0, "0" * 32, 0, 0, "")


def _named(store: str) -> str:
    """Returns the store's name, and how to enlarge it where that is not plain."""
    return f"{store} (docker: --shm-size)" if store == SHARED_MEMORY else store


def _mib_that_hold(size: int) -> str:
    """Formats a size as buffer= takes it, and no less than `size`."""
    return f"{math.ceil(size * 10 / (1 << 20)) / 10:.1f} MiB"


def _mib(size: int) -> str:
    if size < 1 << 10:
        return f"{size} bytes"
    return f"{size / (1 << 20):,.1f} MiB" if size >= 100 << 10 else f"{size / (1 << 10):.1f} KiB"
