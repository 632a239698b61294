"""Decides who may use which slot: the table of slot states, the free list, and leases. Pure: it touches no memory. The
rules, whose reasons are in decisions 0003 (batches in several slots) and 0017 (quarantine and adoption):

1. A slot is FREE, FILLING while workers write its rows, READY when all are in, LEASED while a consumer may read it, and
   QUARANTINED while a writer of a dead daemon may still live. TABLE below is the whole of it; the picture in
   docs/architecture.md is drawn from it. An event that it does not have raises InvariantError and changes nothing.
2. A batch takes as many slots as it needs, any free ones, and is known by the first: a kept batch shrinks the ring and
   blocks nothing, and no run of adjacent slots is ever waited for. All slots of a batch share one state.
3. A slot's generation grows with each claim, and (slot, generation) names one use of it. A release that is late, or of
   another use, changes nothing.
4. A batch may have several leases. It stays LEASED when the last one ends: then the caller keeps or evicts it, and
   neither is possible before (`release`, `keep`, `evict`).
5. `on_free` is called for each use that is over, before its slots can be claimed.
6. Slots become usable as they get memory, the first ones first. A claim takes the slot that was freed last, else the
   lowest one: reuse stays warm, and the first slots are prefaulted first.
7. A ring that is to have fewer slots claims no others (`restrict`). Those beyond end with the batches that are in them,
   and lose their memory from the end, as far as none is in use (`take_back`).
8. A grant of a former daemon is adopted into free slots alone, and only if its generation is older than any that may
   yet be given: so it cannot be taken for another use (`adopt`).
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Hashable

from prefetchd.wire.errors import InvariantError


class SlotState(enum.Enum):
    FREE = "free"
    FILLING = "filling"
    READY = "ready"
    LEASED = "leased"
    QUARANTINED = "quarantined"

    # Members are singletons; Enum's own hash is Python code, and TABLE is asked for every move.
    __hash__ = object.__hash__


class SlotEvent(enum.Enum):
    CLAIM = "claim"
    FILL = "fill"
    LEASE = "lease"
    KEEP = "keep"
    EVICT = "evict"
    ABANDON = "abandon"
    QUARANTINE = "quarantine"
    CLEAR = "clear"

    __hash__ = object.__hash__


TABLE: dict[tuple[SlotState, SlotEvent], SlotState] = {
    (SlotState.FREE, SlotEvent.CLAIM): SlotState.FILLING,
    (SlotState.FILLING, SlotEvent.FILL): SlotState.READY,
    (SlotState.FILLING, SlotEvent.ABANDON): SlotState.FREE,
    (SlotState.FILLING, SlotEvent.QUARANTINE): SlotState.QUARANTINED,
    (SlotState.QUARANTINED, SlotEvent.CLEAR): SlotState.FREE,
    (SlotState.READY, SlotEvent.LEASE): SlotState.LEASED,
    (SlotState.READY, SlotEvent.EVICT): SlotState.FREE,
    (SlotState.LEASED, SlotEvent.LEASE): SlotState.LEASED,
    (SlotState.LEASED, SlotEvent.KEEP): SlotState.READY,
    (SlotState.LEASED, SlotEvent.EVICT): SlotState.FREE,
}


@dataclasses.dataclass(frozen=True)
class Grant:
    """One use of some slots by one batch, in the order of its bytes."""

    slots: tuple[int, ...]
    generation: int

    @property
    def slot(self) -> int:
        """The first slot, by which the batch is known."""
        return self.slots[0]

    @property
    def span(self) -> int:
        return len(self.slots)


class Ring:
    """The slots and their users. `slots` is the full size; slots become usable as `reserve` says, first ones first.

    `first_generation` must exceed every generation that was ever given out on the same memory. `on_free` is called with
    each grant that is over, before its slots can be claimed.
    """

    def __init__(
        self, slots: int, *, first_generation: int = 1, on_free: Callable[[Grant], None] | None = None
    ) -> None:
        self.slots = slots
        self._on_free = on_free
        self.reserved = 0
        self.usable = slots
        """No claim takes a slot from this one on (rule 7)."""
        self._claims = 0
        self._claimed_slots = 0
        self._states: list[SlotState] = []
        self._grants: dict[int, Grant] = {}
        self._leases: dict[int, set[Hashable]] = {}
        self._next_generation = first_generation
        self._free: list[int] = []
        self._counts = dict.fromkeys(SlotState, 0)

    def reserve(self, slots: int) -> None:
        """Makes slots up to `slots` (exclusive) usable: they now have memory behind them."""
        if not self.reserved <= slots <= self.slots:
            raise InvariantError(f"reserve {slots} slots; {self.reserved} of {self.slots} are reserved")
        self._states += [SlotState.FREE] * (slots - self.reserved)
        self._counts[SlotState.FREE] += slots - self.reserved
        # The lowest slot is on top: the first slots are prefaulted first, and reuse stays warm.
        self._free = list(range(min(slots, self.usable) - 1, self.reserved - 1, -1)) + self._free
        self.reserved = slots

    def restrict(self, slots: int) -> None:
        """Has claims take slots up to `slots` (exclusive) only, be that fewer than before or more (rule 7)."""
        if not 1 <= slots <= self.slots:
            raise InvariantError(f"{slots} of {self.slots} slots")
        again = [each for each in range(self.usable, min(slots, self.reserved)) if self._states[each] is SlotState.FREE]
        self._free = again[::-1] + [each for each in self._free if each < slots]
        self.usable = slots

    def take_back(self) -> int:
        """Gives up the slots beyond the usable ones, from the end, down to one that is in use. Returns how many have
        memory now; the caller may take that of the others."""
        slots = self.reserved
        while slots > self.usable and self._states[slots - 1] is SlotState.FREE:
            slots -= 1
        self._counts[SlotState.FREE] -= self.reserved - slots
        del self._states[slots:]
        self.reserved = slots
        return slots

    @property
    def claimable(self) -> int:
        """The slots that claims can have now."""
        return len(self._free)

    def count(self, state: SlotState) -> int:
        """Counts the slots in `state`; a batch of span n counts n times."""
        return self._counts[state]

    def state(self, slot: int) -> SlotState:
        return self._states[slot]

    def leases(self, slot: int) -> frozenset[Hashable]:
        return frozenset(self._leases.get(slot, ()))

    def grant_of(self, slot: int, generation: int) -> Grant | None:
        """Returns the use that (slot, generation) names, or None when it is over."""
        grant = self._grants.get(slot)
        return grant if grant is not None and grant.generation == generation else None

    @property
    def mean_span(self) -> float:
        """Slots that a batch takes on average."""
        return self._claimed_slots / self._claims if self._claims else 1.0

    @property
    def capacity(self) -> int:
        """Batches of average span that the slots take which are reserved and usable."""
        slots = min(self.reserved, self.usable)
        return slots * self._claims // self._claimed_slots if self._claims else slots

    def claim(self, span: int = 1) -> Grant | None:
        """FREE -> FILLING: claims `span` slots for one batch. Returns None when fewer are free."""
        if span < 1:
            raise InvariantError(f"a claim of {span} slots")
        if len(self._free) < span:
            return None
        slots = tuple(sorted(self._free.pop() for _ in range(span)))
        grant = Grant(slots, self._next_generation)
        self._next_generation += 1
        self._claims += 1
        self._claimed_slots += span
        self._move(grant, SlotEvent.CLAIM)
        self._grants[grant.slot] = grant
        return grant

    def fill(self, grant: Grant) -> None:
        """FILLING -> READY: all rows are in."""
        self._move(self._current(grant), SlotEvent.FILL)

    def abandon(self, grant: Grant) -> None:
        """FILLING -> FREE: nobody can write to the slots any more, and the batch will be made elsewhere or never."""
        self._free_up(grant, SlotEvent.ABANDON)

    def quarantine(self, grant: Grant) -> None:
        """FILLING -> QUARANTINED: a writer may still live."""
        self._move(self._current(grant), SlotEvent.QUARANTINE)

    def clear(self, grant: Grant) -> None:
        """QUARANTINED -> FREE: the writer's death is certain."""
        self._free_up(grant, SlotEvent.CLEAR)

    def lease(self, grant: Grant, holder: Hashable) -> None:
        """READY or LEASED -> LEASED: adds a lease by `holder`."""
        holders = self._leases.setdefault(grant.slot, set())
        if holder in holders:
            raise InvariantError(f"slot {grant.slot} is leased to {holder} already")
        self._move(self._current(grant), SlotEvent.LEASE)
        holders.add(holder)

    def release(self, grant: Grant, holder: Hashable) -> bool:
        """Ends one lease. Returns True when it was the last: the caller then keeps or evicts (rule 4). Late or unknown
        releases change nothing and return False."""
        if self._grants.get(grant.slot) != grant:
            return False
        holders = self._leases.get(grant.slot)
        if not holders or holder not in holders:
            return False
        holders.remove(holder)
        return not holders

    def keep(self, grant: Grant) -> None:
        """LEASED -> READY: no lease is left and somebody may still want the batch."""
        self._unleased(grant)
        self._move(self._current(grant), SlotEvent.KEEP)

    def evict(self, grant: Grant) -> None:
        """READY or LEASED -> FREE, when no lease is left."""
        self._unleased(grant)
        self._free_up(grant, SlotEvent.EVICT)

    def adopt(self, grant: Grant, *, quarantined: bool) -> None:
        """FREE -> READY (or QUARANTINED) with a grant that a former daemon gave."""
        if grant.generation >= self._next_generation:
            raise InvariantError(f"{grant} is of the future")
        free = set(self._free)
        if not grant.slots or len(set(grant.slots)) != grant.span or not free.issuperset(grant.slots):
            raise InvariantError(f"{grant} takes slots that are not free")
        self._move(grant, SlotEvent.CLAIM)
        self._grants[grant.slot] = grant
        self._free = [slot for slot in self._free if slot not in grant.slots]
        self._move(grant, SlotEvent.QUARANTINE if quarantined else SlotEvent.FILL)

    def _current(self, grant: Grant) -> Grant:
        if self._grants.get(grant.slot) != grant:
            raise InvariantError(f"{grant} is over; slot {grant.slot} has {self._grants.get(grant.slot)}")
        return grant

    def _unleased(self, grant: Grant) -> None:
        if self._leases.get(grant.slot):
            raise InvariantError(f"{grant} is still leased to {self._leases[grant.slot]}")

    def _move(self, grant: Grant, event: SlotEvent) -> None:
        # All slots of a batch share one state: the first one's speaks for them.
        before = self._states[grant.slot]
        after = TABLE.get((before, event))
        if after is None:
            raise InvariantError(f"{event.value} of slot {grant.slot}, which is {before.value}")
        for slot in grant.slots:
            self._states[slot] = after
        self._counts[before] -= grant.span
        self._counts[after] += grant.span

    def _free_up(self, grant: Grant, event: SlotEvent) -> None:
        self._move(self._current(grant), event)
        del self._grants[grant.slot]
        self._leases.pop(grant.slot, None)
        self._free += [slot for slot in reversed(grant.slots) if slot < self.usable]
        if self._on_free is not None:
            self._on_free(grant)
