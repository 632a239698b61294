"""Who may use which slot: the table and nothing beside it, generations that grow, leases that end once."""

from __future__ import annotations

import dataclasses
import itertools

import hypothesis.strategies as st
import pytest
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefetchd.ring.policy import TABLE, Grant, Ring, SlotEvent, SlotState
from prefetchd.wire.errors import InvariantError
from tests.budgets import tries

FREE, FILLING, READY, LEASED, QUARANTINED = SlotState


def ring_of(slots: int, reserved: int | None = None, **options: int) -> Ring:
    ring = Ring(slots, **options)
    ring.reserve(slots if reserved is None else reserved)
    return ring


def picture(ring: Ring) -> tuple:
    """All that can be asked of a ring."""
    return (
        ring.slots,
        ring.reserved,
        ring.mean_span,
        tuple(ring.count(state) for state in SlotState),
        tuple((ring.state(slot), ring.leases(slot)) for slot in range(ring.reserved)),
        tuple(
            ring.grant_of(slot, generation) for slot in range(ring.reserved) for generation in range(ring.reserved * 4)
        ),
    )


def drained(ring: Ring) -> list[Grant]:
    """All further grants of one slot: ends the ring, and shows the free list and the next generations."""
    return list(iter(ring.claim, None))


# --- the table ---

EXPECTED = {
    (FREE, SlotEvent.CLAIM): FILLING,
    (FILLING, SlotEvent.FILL): READY,
    (FILLING, SlotEvent.ABANDON): FREE,
    (FILLING, SlotEvent.QUARANTINE): QUARANTINED,
    (QUARANTINED, SlotEvent.CLEAR): FREE,
    (READY, SlotEvent.LEASE): LEASED,
    (READY, SlotEvent.EVICT): FREE,
    (LEASED, SlotEvent.LEASE): LEASED,
    (LEASED, SlotEvent.KEEP): READY,
    (LEASED, SlotEvent.EVICT): FREE,
}


def test_the_table_is_what_the_architecture_draws():
    assert TABLE == EXPECTED


def test_every_state_can_be_reached_and_left_again():
    reachable = {FREE}
    while more := {after for (before, _), after in TABLE.items() if before in reachable} - reachable:
        reachable |= more
    assert reachable == set(SlotState)
    assert {before for before, _ in TABLE} == set(SlotState)


def batch_in(state: SlotState, span: int) -> tuple[Ring, Grant]:
    """A ring of 6 with a batch in `state`, between two others; a LEASED one has no holder left."""
    ring = ring_of(6)
    ring.claim()
    grant = ring.claim(span)
    ring.claim()
    if state is QUARANTINED:
        ring.quarantine(grant)
    elif state is FREE:
        ring.abandon(grant)
    elif state in (READY, LEASED):
        ring.fill(grant)
    if state is LEASED:
        ring.lease(grant, "holder")
        assert ring.release(grant, "holder")
    assert all(ring.state(slot) is state for slot in grant.slots)
    return ring, grant


def cause(ring: Ring, grant: Grant, event: SlotEvent) -> None:
    """The event by the method that stands for it."""
    match event:
        case SlotEvent.CLAIM:
            ring.adopt(grant, quarantined=False)
        case SlotEvent.LEASE:
            ring.lease(grant, "another holder")
        case _:
            getattr(ring, event.value)(grant)


EVERY_EVENT = list(itertools.product(SlotState, SlotEvent))
LEGAL = [each for each in EVERY_EVENT if each in EXPECTED]
ILLEGAL = [each for each in EVERY_EVENT if each not in EXPECTED]


@pytest.mark.parametrize("span", [1, 3])
@pytest.mark.parametrize(("before", "event"), LEGAL, ids=lambda each: each.value)
def test_an_event_of_the_table_takes_all_slots_of_the_batch_along(before, event, span):
    ring, grant = batch_in(before, span)
    others = {slot: ring.state(slot) for slot in range(6) if slot not in grant.slots}
    after = READY if event is SlotEvent.CLAIM else EXPECTED[before, event]  # adopting claims and fills at once
    cause(ring, grant, event)
    assert {ring.state(slot) for slot in grant.slots} == {after}
    assert {slot: ring.state(slot) for slot in others} == others
    assert (ring.grant_of(grant.slot, grant.generation) is None) == (after is FREE)


@pytest.mark.parametrize("span", [1, 3])
@pytest.mark.parametrize(("before", "event"), ILLEGAL, ids=lambda each: each.value)
def test_an_event_that_the_table_does_not_have_raises_and_changes_nothing(before, event, span):
    ring, grant = batch_in(before, span)
    pictured = picture(ring)
    with pytest.raises(InvariantError):
        cause(ring, grant, event)
    assert picture(ring) == pictured
    untouched, _ = batch_in(before, span)
    assert drained(ring) == drained(untouched), "the free list or the generations were changed"


def test_the_error_tells_the_event_the_slot_and_its_state():
    ring = ring_of(2)
    grant = ring.claim()
    ring.fill(grant)
    with pytest.raises(InvariantError, match="fill of slot 0, which is ready"):
        ring.fill(grant)


# --- claims and spans ---


def test_the_lowest_slot_is_claimed_first_and_the_last_one_freed_is_claimed_again_first():
    ring = ring_of(4)
    grants = [ring.claim() for _ in range(3)]
    assert [grant.slot for grant in grants] == [0, 1, 2]
    ring.abandon(grants[0])
    ring.abandon(grants[2])
    assert [ring.claim().slot, ring.claim().slot, ring.claim().slot] == [2, 0, 3]


def test_a_full_ring_grants_nothing_and_a_kept_batch_only_shrinks_it():
    ring = ring_of(3)
    kept = ring.claim()
    ring.fill(kept)
    ring.lease(kept, "hoarder")
    for _ in range(20):
        first, second = ring.claim(), ring.claim()
        assert ring.claim() is None
        assert kept.slot not in {first.slot, second.slot}
        ring.abandon(first)
        ring.abandon(second)
    assert ring.grant_of(kept.slot, kept.generation) == kept


def test_a_large_batch_takes_any_free_slots_in_ascending_order():
    ring = ring_of(6)
    grants = [ring.claim() for _ in range(6)]
    for slot in (4, 0, 2):
        ring.abandon(grants[slot])
    assert ring.claim(4) is None
    grant = ring.claim(3)
    assert grant.slots == (0, 2, 4)
    assert (grant.slot, grant.span) == (0, 3)
    assert ring.count(FREE) == 0


def test_what_cannot_be_granted_changes_nothing():
    ring = ring_of(3)
    ring.claim()
    pictured = picture(ring)
    assert ring.claim(3) is None
    assert picture(ring) == pictured
    assert ring.claim(2).generation == 2


@pytest.mark.parametrize("span", [0, -1])
def test_a_batch_of_no_slots_raises_and_changes_nothing(span):
    ring = ring_of(3)
    pictured = picture(ring)
    with pytest.raises(InvariantError):
        ring.claim(span)
    assert picture(ring) == pictured
    assert ring.claim().generation == 1


def test_only_the_first_slot_knows_the_batch():
    ring = ring_of(3)
    grant = ring.claim(3)
    assert ring.grant_of(0, grant.generation) == grant
    assert ring.grant_of(1, grant.generation) is None
    assert ring.grant_of(2, grant.generation) is None
    assert ring.grant_of(99, grant.generation) is None


def test_the_mean_span_is_that_of_all_claims():
    ring = ring_of(6)
    assert ring.mean_span == 1
    ring.abandon(ring.claim(3))
    assert ring.mean_span == 3
    ring.claim()
    assert ring.claim(6) is None
    assert ring.mean_span == 2


# --- generations ---


@pytest.mark.parametrize("first_generation", [1, 1000])
def test_generations_grow_with_each_claim_whatever_the_slot(first_generation):
    ring = ring_of(3, first_generation=first_generation)
    grants = []
    for _ in range(5):
        grants += [ring.claim(), ring.claim(2)]
        ring.abandon(grants[-1])
        ring.abandon(grants[-2])
    assert [grant.generation for grant in grants] == list(range(first_generation, first_generation + 10))


def use(ring: Ring) -> Grant:
    grant = ring.claim()
    ring.fill(grant)
    ring.lease(grant, "reader")
    return grant


def test_a_late_release_does_not_end_the_next_use_of_the_slot():
    ring = ring_of(1)
    first = use(ring)
    assert ring.release(first, "reader")
    ring.evict(first)
    second = use(ring)
    assert second.slot == first.slot
    assert ring.grant_of(first.slot, first.generation) is None
    pictured = picture(ring)
    assert not ring.release(first, "reader")
    assert picture(ring) == pictured
    assert ring.release(second, "reader")


@pytest.mark.parametrize("event", ["fill", "abandon", "quarantine", "clear", "lease", "keep", "evict"])
def test_a_grant_that_is_over_does_nothing_to_the_next_use_of_its_slot(event):
    ring = ring_of(1)
    over = ring.claim()
    ring.abandon(over)
    current = ring.claim()
    for prepare in (lambda: None, lambda: ring.fill(current), lambda: ring.lease(current, "reader")):
        prepare()
        pictured = picture(ring)
        with pytest.raises(InvariantError):
            getattr(ring, event)(over, *(["someone"] if event == "lease" else []))
        assert picture(ring) == pictured


def test_releases_of_what_never_was_are_harmless():
    ring = ring_of(2)
    grant = ring.claim()
    ring.fill(grant)
    pictured = picture(ring)
    assert not ring.release(grant, "reader"), "nobody holds it"
    assert not ring.release(Grant((1,), 7), "reader"), "never granted"
    assert not ring.release(Grant((99,), 1), "reader"), "no slot of this ring"
    assert not ring.release(dataclasses.replace(grant, generation=grant.generation + 1), "reader")
    assert not ring.release(Grant((0, 1), grant.generation), "reader"), "another span"
    assert picture(ring) == pictured


# --- leases ---


def test_the_last_of_several_holders_ends_the_lease():
    ring = ring_of(2)
    grant = ring.claim()
    ring.fill(grant)
    holders = ["a", ("b", 1), 3]
    for count, holder in enumerate(holders, start=1):
        ring.lease(grant, holder)
        assert ring.leases(grant.slot) == set(holders[:count])
        assert ring.state(grant.slot) is LEASED
    assert not ring.release(grant, ("b", 1))
    assert not ring.release(grant, ("b", 1)), "once is enough"
    assert not ring.release(grant, "a")
    assert ring.leases(grant.slot) == {3}
    assert ring.release(grant, 3)
    assert ring.leases(grant.slot) == frozenset()
    assert ring.state(grant.slot) is LEASED, "the caller keeps it or evicts it"


def test_the_same_holder_does_not_lease_twice():
    ring = ring_of(1)
    grant = use(ring)
    pictured = picture(ring)
    with pytest.raises(InvariantError, match="leased to reader already"):
        ring.lease(grant, "reader")
    assert picture(ring) == pictured


@pytest.mark.parametrize("event", ["keep", "evict"])
def test_what_somebody_holds_is_neither_kept_nor_evicted(event):
    ring = ring_of(2)
    grant = use(ring)
    ring.lease(grant, "another")
    for holder in ("reader", "another"):
        pictured = picture(ring)
        with pytest.raises(InvariantError, match="still leased"):
            getattr(ring, event)(grant)
        assert picture(ring) == pictured
        ring.release(grant, holder)
    getattr(ring, event)(grant)


def test_a_kept_batch_can_be_leased_again_by_the_same_holder():
    ring = ring_of(1)
    grant = use(ring)
    for _ in range(3):
        assert ring.release(grant, "reader")
        ring.keep(grant)
        assert ring.state(grant.slot) is READY
        ring.lease(grant, "reader")
        assert ring.leases(grant.slot) == {"reader"}


def test_leases_do_not_pass_to_the_next_use_of_the_slot():
    ring = ring_of(1)
    grant = use(ring)
    ring.release(grant, "reader")
    ring.evict(grant)
    again = ring.claim()
    assert ring.leases(again.slot) == frozenset()


# --- reserve ---


def test_slots_are_usable_as_they_are_reserved():
    ring = Ring(5)
    assert ring.claim() is None
    ring.reserve(2)
    assert [ring.claim().slot, ring.claim().slot, ring.claim()] == [0, 1, None]
    ring.reserve(2)
    assert ring.claim() is None
    ring.reserve(5)
    assert (ring.reserved, ring.slots) == (5, 5)
    assert ring.claim(3).slots == (2, 3, 4)
    assert ring.claim() is None


def test_slots_that_were_in_use_are_used_again_before_new_ones():
    """Their pages are warm."""
    ring = ring_of(5, reserved=2)
    first, _ = ring.claim(), ring.claim()
    ring.abandon(first)
    ring.reserve(5)
    assert [ring.claim().slot for _ in range(4)] == [0, 2, 3, 4]


@pytest.mark.parametrize("slots", [-1, 1, 6])
def test_reserving_neither_takes_slots_back_nor_outgrows_the_ring(slots):
    ring = ring_of(5, reserved=2)
    pictured = picture(ring)
    with pytest.raises(InvariantError, match=f"reserve {slots} slots; 2 of 5"):
        ring.reserve(slots)
    assert picture(ring) == pictured


# --- adopt ---


@pytest.mark.parametrize(("quarantined", "state"), [(False, READY), (True, QUARANTINED)])
def test_an_adopted_batch_is_ready_or_quarantined_under_its_old_grant(quarantined, state):
    ring = ring_of(5, first_generation=50)
    grant = Grant((3, 1), 49)
    ring.adopt(grant, quarantined=quarantined)
    assert [ring.state(slot) for slot in range(5)] == [FREE, state, FREE, state, FREE]
    assert ring.grant_of(3, 49) == grant
    assert (ring.count(FREE), ring.count(state)) == (3, 2)
    others = drained(ring)
    assert [other.slot for other in others] == [0, 2, 4]
    assert [other.generation for other in others] == [50, 51, 52]
    (ring.clear if quarantined else ring.evict)(grant)
    assert ring.claim(2).slots == (1, 3)


def test_a_grant_of_the_future_is_not_adopted():
    """A later claim would give the same generation again."""
    ring = ring_of(2, first_generation=50)
    pictured = picture(ring)
    for generation in (50, 51, 1 << 63):
        with pytest.raises(InvariantError, match="is of the future"):
            ring.adopt(Grant((0,), generation), quarantined=False)
    assert picture(ring) == pictured


def assert_not_adopted(slots: tuple[int, ...], quarantined: bool) -> None:
    """In a ring whose slot 0 is taken, 1 and 2 are free, and 3 has no memory yet."""
    ring = ring_of(4, reserved=3, first_generation=50)
    taken = ring.claim()
    ring.fill(taken)
    pictured = picture(ring)
    with pytest.raises(InvariantError):
        ring.adopt(Grant(slots, 7), quarantined=quarantined)
    assert picture(ring) == pictured
    assert [grant.slot for grant in drained(ring)] == [1, 2]


@pytest.mark.parametrize("quarantined", [False, True])
@pytest.mark.parametrize("slots", [(0,), (0, 1), (1, 0), (1, 2, 0)], ids=repr)
def test_slots_of_another_batch_are_not_adopted(slots, quarantined):
    """Whichever of them it is: two records of a damaged segment may lead to one slot."""
    assert_not_adopted(slots, quarantined)


@pytest.mark.parametrize("slots", [(3,), (1, 3), (4,), (1, 4), (-1,), (1, -1), (1, 1), ()], ids=repr)
def test_slots_that_are_not_reserved_not_there_or_named_twice_are_not_adopted(slots):
    assert_not_adopted(slots, quarantined=False)


# --- fewer slots ---


def test_a_ring_that_is_to_have_fewer_slots_claims_no_others_and_gives_up_what_is_in_them_last():
    ring = ring_of(6)
    grants = [ring.claim() for _ in range(5)]
    ring.restrict(2)
    assert (ring.capacity, ring.claimable) == (2, 0)
    assert ring.take_back() == 5, "the last slot is free, the one before is not"
    ring.abandon(grants[3])
    assert ring.take_back() == 5
    ring.abandon(grants[4])
    assert ring.take_back() == 3
    ring.abandon(grants[0])
    assert ring.claim().slots == (0,), "a slot that may be claimed is, be others beyond still in use"
    ring.abandon(grants[2])
    assert ring.take_back() == 2
    assert ring.claim() is None


def test_slots_that_are_to_be_given_up_can_be_had_after_all():
    ring = ring_of(4)
    last = [ring.claim() for _ in range(4)][3]
    ring.restrict(1)
    ring.abandon(last)
    assert ring.claim() is None
    ring.restrict(4)
    assert ring.claim().slots == (3,)
    assert ring.take_back() == 4


def test_slots_without_memory_can_have_it_again():
    ring = ring_of(4)
    ring.restrict(2)
    assert ring.take_back() == 2
    ring.reserve(3)
    assert [each.slots for each in drained(ring)] == [(0,), (1,)]
    ring.restrict(3)
    assert ring.claim().slots == (2,)


# --- the ring against a naive model ---


@dataclasses.dataclass
class Use:
    """One use of slots, as anybody would write it down."""

    grant: Grant
    state: SlotState
    holders: set = dataclasses.field(default_factory=set)


class RingMachine(RuleBasedStateMachine):
    """Any order of events, legal or not: the model keeps a list of uses and looks everything up the slow way."""

    @initialize(slots=st.integers(1, 8), first_generation=st.integers(1, 5))
    def begin(self, slots, first_generation):
        self.ring = Ring(slots, first_generation=first_generation)
        self.reserved, self.usable = 0, slots
        self.uses: list[Use] = []
        self.over: list[Grant] = []
        self.last_generation = first_generation - 1

    def free_slots(self) -> set[int]:
        return set(range(self.reserved)) - {slot for use in self.uses for slot in use.grant.slots}

    def claimable(self) -> set[int]:
        return {slot for slot in self.free_slots() if slot < self.usable}

    def pick(self, index: int) -> Use:
        return self.uses[index % len(self.uses)]

    def attempt(self, event: SlotEvent, use: Use, *args: object, allowed: bool = True) -> None:
        """Does it if table and model allow it, and is refused otherwise."""
        method = getattr(self.ring, event.value)
        after = EXPECTED.get((use.state, event))
        if after is None or not allowed:
            pictured = picture(self.ring)
            with pytest.raises(InvariantError):
                method(use.grant, *args)
            assert picture(self.ring) == pictured
            return
        method(use.grant, *args)
        use.state = after
        if after is FREE:
            self.uses.remove(use)
            self.over.append(use.grant)

    @rule(slots=st.integers(0, 9))
    def reserve(self, slots):
        if self.reserved <= slots <= self.ring.slots:
            self.ring.reserve(slots)
            self.reserved = slots
        else:
            with pytest.raises(InvariantError):
                self.ring.reserve(slots)

    @rule(slots=st.integers(0, 9))
    def restrict(self, slots):
        if 1 <= slots <= self.ring.slots:
            self.ring.restrict(slots)
            self.usable = slots
        else:
            with pytest.raises(InvariantError):
                self.ring.restrict(slots)

    @rule()
    def take_back(self):
        in_use = [slot for use in self.uses for slot in use.grant.slots]
        self.reserved = min(self.reserved, max([self.usable, *(slot + 1 for slot in in_use)]))
        assert self.ring.take_back() == self.reserved

    @rule(span=st.integers(1, 4))
    def claim(self, span):
        free = self.claimable()
        grant = self.ring.claim(span)
        if len(free) < span:
            assert grant is None
            return
        assert set(grant.slots) <= free
        assert list(grant.slots) == sorted(set(grant.slots))
        assert len(grant.slots) == span
        assert grant.generation > self.last_generation
        self.last_generation = grant.generation
        self.uses.append(Use(grant, FILLING))

    @precondition(lambda self: self.uses)
    @rule(
        index=st.integers(0, 9),
        event=st.sampled_from([each for each in SlotEvent if each not in (SlotEvent.CLAIM, SlotEvent.LEASE)]),
    )
    def move(self, index, event):
        use = self.pick(index)
        held = event in (SlotEvent.KEEP, SlotEvent.EVICT) and bool(use.holders)
        self.attempt(event, use, allowed=not held)

    @precondition(lambda self: self.uses)
    @rule(index=st.integers(0, 9), holder=st.integers(0, 2))
    def lease(self, index, holder):
        use = self.pick(index)
        allowed = holder not in use.holders
        legal = (use.state, SlotEvent.LEASE) in EXPECTED
        self.attempt(SlotEvent.LEASE, use, holder, allowed=allowed)
        if allowed and legal:
            use.holders.add(holder)

    @precondition(lambda self: self.uses)
    @rule(index=st.integers(0, 9), holder=st.integers(0, 2))
    def release(self, index, holder):
        use = self.pick(index)
        last = use.holders == {holder}
        assert self.ring.release(use.grant, holder) is last
        use.holders.discard(holder)

    @precondition(lambda self: self.over)
    @rule(index=st.integers(0, 99), event=st.sampled_from(list(SlotEvent)), holder=st.integers(0, 2))
    def use_what_is_over(self, index, event, holder):
        grant = self.over[index % len(self.over)]
        pictured = picture(self.ring)
        assert not self.ring.release(grant, holder)
        assert self.ring.grant_of(grant.slot, grant.generation) is None
        if event is not SlotEvent.CLAIM:
            with pytest.raises(InvariantError):
                getattr(self.ring, event.value)(grant, *([holder] if event is SlotEvent.LEASE else []))
        assert picture(self.ring) == pictured

    @precondition(lambda self: self.over)
    @rule(index=st.integers(0, 99), quarantined=st.booleans())
    def adopt(self, index, quarantined):
        grant = self.over[index % len(self.over)]
        if set(grant.slots) <= self.claimable():
            self.ring.adopt(grant, quarantined=quarantined)
            self.over.remove(grant)
            self.uses.append(Use(grant, QUARANTINED if quarantined else READY))

    @invariant()
    def the_ring_is_as_the_model_says(self):
        if not hasattr(self, "ring"):
            return
        states = {slot: (use.state, use) for use in self.uses for slot in use.grant.slots}
        for slot in range(self.reserved):
            assert self.ring.state(slot) is states.get(slot, (FREE, None))[0]
        for use in self.uses:
            assert self.ring.grant_of(use.grant.slot, use.grant.generation) == use.grant
            assert self.ring.leases(use.grant.slot) == use.holders
        for state in SlotState:
            told = len(self.free_slots()) if state is FREE else sum(u.grant.span for u in self.uses if u.state is state)
            assert self.ring.count(state) == told
        assert self.ring.reserved == self.reserved
        assert self.ring.claimable == len(self.claimable())
        if not self.over and not self.uses:
            assert self.ring.capacity == min(self.reserved, self.usable)

    def teardown(self):
        if not hasattr(self, "ring"):
            return
        self.ring.restrict(self.ring.slots)
        claimed = drained(self.ring)
        assert {grant.slot for grant in claimed} == self.free_slots(), "every free slot can still be had, each once"
        assert len(claimed) == len({grant.slot for grant in claimed})


TestRing = RingMachine.TestCase
TestRing.settings = tries(60, stateful_step_count=40)
