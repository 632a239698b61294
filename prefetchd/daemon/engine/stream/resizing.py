"""Resizing gives a ring as many slots as the daemon has found to be right. Pure. The rules, whose reasons are in
decision 0116:

1. More slots are asked for as for larger batches (growth.py): where there is no memory for them, the ring stays.
2. Fewer slots than the smallest ring has, or than the batches behind the consumers are to have, are never left.
3. A ring that is to have fewer claims no others from then on. Those beyond are given up from the end, each when the
   batch in it has been used: nothing that is ready is thrown away.
4. Nothing is resized while it still grows.
5. A ring that gives up slots keeps twice as many as trainers hold, as they hold half of a ring at most: or what a
   next() waits for would find no room until its trainer lets go of something.
"""

from __future__ import annotations

import math

from prefetchd.daemon.engine.commands import Command, ShrinkRing
from prefetchd.daemon.engine.stream.growth import grow_to
from prefetchd.daemon.engine.stream.stream_state import StreamState


def resize(stream: StreamState, slots: int, commands: list[Command]) -> None:
    """Has the stream's ring get `slots`, within its bounds, as soon as that can be."""
    ring, window = stream.window.ring, stream.window
    if ring is None or ring.reserved < stream.wanted_slots:
        return
    # All that is kept lies in the ring beside what is ahead.
    behind = math.ceil(window.lookback.limit(ring) * ring.mean_span)
    least = max(stream.spec.minimum_slots, 2 * behind, stream.claims.widest)
    slots = min(max(slots, least), stream.bounds.most)
    if slots > stream.wanted_slots:
        grow_to(stream, slots, commands)
    elif slots < stream.wanted_slots:
        stream.wanted_slots = slots
        ring.restrict(slots)
    # From here on it grows with its batches.
    stream.first_slots = math.ceil(slots / ring.mean_span)


def keep_beside_held(stream: StreamState) -> None:
    """Has a ring that gives up slots keep as many as trainers hold, beside those (rule 5)."""
    ring = stream.window.ring
    if ring is None or not stream.is_shrinking:
        return
    least = min(ring.reserved, 2 * stream.leases.slots_given_out())
    if ring.usable < least:
        stream.wanted_slots = least
        ring.restrict(least)


def give_up_slots(stream: StreamState, commands: list[Command]) -> None:
    """Gives up the slots that the ring is not to have any more, as far as they are free (rule 3)."""
    ring = stream.window.ring
    if ring is None:
        return
    before = ring.reserved
    if ring.take_back() < before:
        commands.append(ShrinkRing(stream.number, ring.reserved))
