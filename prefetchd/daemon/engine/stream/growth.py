"""Growth decides how a ring grows with its batches, and which of them are too large for it. Pure. Decision 0091 has the
reasons.

1. A batch fails at once only if it takes more than its ring may ever have (Bounds.most).
2. The ring grows so that two of it fit, as one may be held while the next is filled; and, within Bounds.usual, so that
   as many batches fit as it was made for.
3. Where there is no memory for that, it grows so that this one fits beside what trainers hold; or else once they have
   let go of that. They get a copy of what takes more than half of the ring, and release it at once.
4. Where there is no memory for that either, what does not fit the ring as it is fails. The next one asks again: others
   may have let memory go by then.
5. What would fit but for batches that trainers hold fails as soon as a call of next() waits for it: whoever holds them
   may be that very caller.
"""

from __future__ import annotations

import math

from prefetchd.daemon.engine.commands import Command, GrowRing, Log
from prefetchd.daemon.engine.stream.batches import Batch
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.wire.remote_exception import RemoteException, encode_exception


def is_too_large(stream: StreamState, span: int) -> bool:
    """True when no batch of the stream can have `span` slots."""
    return span > stream.bounds.most


def grow_for(stream: StreamState, span: int, commands: list[Command]) -> None:
    """Grows the ring for a batch of `span` slots that waits for room, and is not too large (rule 2)."""
    ring, bounds = stream.window.ring, stream.bounds
    assert ring is not None
    two = 2 * span if 2 * span <= bounds.most else span + stream.wanted_slots // 2
    usual = min(bounds.usual, math.ceil(stream.first_slots * ring.mean_span))
    wanted = min(bounds.most, max(two, usual))
    # What was refused and is not needed is not asked for again and again.
    is_refused = 0 < stream.refused_slots <= wanted and span <= stream.wanted_slots
    if wanted > stream.wanted_slots and not is_refused:
        grow_to(stream, wanted, commands)


def grown(stream: StreamState) -> None:
    """Notes that there is memory behind more slots."""
    ring = stream.window.ring
    assert ring is not None
    stream.refused_slots = 0
    stream.window.lookback.ring_slots = max(stream.window.lookback.ring_slots, ring.reserved)


def cannot_grow(stream: StreamState, slots: int, why: str, commands: list[Command]) -> None:
    """Has the ring grow less, as there is memory for `slots` only, those that it has or is about to have; if that does
    not help, fails what waits for more room (rules 3 and 4)."""
    asked = stream.wanted_slots
    is_news = not stream.refused_slots
    stream.refused_slots, stream.refused_why = asked, why
    widest = stream.claims.widest
    beside_what_is_held = min(stream.bounds.most, widest + stream.leases.slots_given_out())
    # Rule 3, the larger of the two first.
    for less in (beside_what_is_held, widest):
        if widest and slots < less < asked:
            grow_to(stream, less, commands)
            return
    stream.wanted_slots = slots
    stream.window.lookback.ring_slots = slots
    too_wide = stream.claims.wider_than(slots)
    if is_news or too_wide:
        commands.append(Log.line("warning", "ring stays small", stream=stream.name, slots=slots, why=why))
    for batch in too_wide:
        allowed = f"the {slots * stream.slot_bytes} bytes of its ring, which cannot grow: {why}"
        _refuse(stream, batch, allowed)


def refuse_what_is_held(stream: StreamState, commands: list[Command]) -> None:
    """Grows the ring for a batch that finds no room beside what trainers hold and for which a next() waits; where it
    cannot grow, the batch fails (rule 5)."""
    window, ring = stream.window, stream.window.ring
    # An absent consumer may give back what is leased to it.
    if ring is None or stream.is_awaited or ring.reserved < stream.wanted_slots:
        return
    held = stream.leases.slots_given_out()
    for batch in stream.claims.wider_than(ring.reserved - held):
        if batch.cancelled or not window.is_awaited(batch, urgent=True):
            continue
        needed = batch.span + held
        if needed <= stream.bounds.most and not batch.asked_room:
            batch.asked_room = True
            grow_to(stream, needed, commands)
            return
        why = stream.refused_why if batch.asked_room else stream.bounds.why
        allowed = (
            f"what is left of the {ring.reserved * stream.slot_bytes} bytes of its ring, of which batches that are "
            f"held take {held * stream.slot_bytes}; keep copies of them. The ring cannot grow: {why}"
        )
        _refuse(stream, batch, allowed)


def too_large(stream: StreamState, batch: Batch, payload_bytes: int) -> bytes:
    """Returns the error in the place of a batch that takes more than its ring may have."""
    most_bytes = stream.bounds.most * stream.slot_bytes
    return _error(batch, payload_bytes, f"{most_bytes} bytes, all that its ring may have: {stream.bounds.why}")


def grow_to(stream: StreamState, slots: int, commands: list[Command]) -> None:
    """Asks for memory behind the ring's slots up to `slots`, or fewer than were asked for before."""
    assert stream.window.ring is not None
    stream.wanted_slots = slots
    stream.window.ring.restrict(slots)
    commands.append(GrowRing(stream.number, slots))


def _refuse(stream: StreamState, batch: Batch, allowed: str) -> None:
    stream.filling.refuse_room(batch, _error(batch, batch.span * stream.slot_bytes, allowed))
    stream.counters.failed += 1


def _error(batch: Batch, payload_bytes: int, allowed: str) -> bytes:
    epoch, step = batch.position
    text = f"the batch at epoch {epoch}, step {step} takes {payload_bytes} bytes; allowed: {allowed}"
    return encode_exception(RemoteException("BatchTooLargeError", text, "", f"epoch {epoch}, step {step}"))
