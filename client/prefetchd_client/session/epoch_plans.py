"""EpochPlans is the trainer's side of what its planner assumes, where a sampler decides the order
(session.sampler_state). The rules, whose reasons are in decision 0021:

1. An epoch is to be planned from the states of sampler and generators: as they are now if its iterator begins, as they
   were when it began if it has begun.
2. The plan is compared with that before the cursor's first batch, and whenever it has changed. This goes on until both
   agree: a daemon that takes over meanwhile knows nothing of what was assumed.
3. A plan from other states is void. The trainer says from which states it is to be, and its cursors from that epoch on
   go on under new numbers. The new ones are placed before the former ones are closed: what is ready may still be
   wanted.
4. When an iterator begins, the generators are set to what they are after the sampler's first batch; when its epoch
   ends, to what the sampler leaves. The latter only if nobody else has drawn from them meanwhile. So is the epoch of a
   sampler that counts its own passes.
5. What was said of an epoch that no iterator has begun yet is remembered until one has compared that epoch or a later
   one. A daemon that takes over is told that, and what the living iterators began with, the earliest epoch first.
"""

from __future__ import annotations

from collections.abc import Callable

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.messages import AFTER_FIRST, AT_END, BEFORE, Assume, CloseCursor, Message
from prefetchd_client.session.cursors import ClientCursor, Cursors
from prefetchd_client.session.sampler_state import SamplerState, as_assumed, is_planned_from


class EpochPlans:
    """Compares and says by the rules 1 to 5. `send` tells the daemon. `wait(cursor, timeout_s)` waits until the
    cursor's next batch is offered, or its end known, and returns how many microseconds that took."""

    def __init__(
        self,
        sampler_state: SamplerState,
        cursors: Cursors,
        send: Callable[[Message], None],
        wait: Callable[[ClientCursor, float], int],
    ) -> None:
        self._sampler_state = sampler_state
        self._cursors = cursors
        self._send = send
        self._wait = wait
        # What was said of an epoch that no iterator was seen to begin yet.
        self._said: Assume | None = None

    def assume(self, epoch: int) -> None:
        """Says that the next iterator begins `epoch` as sampler and generators are now."""
        self._say(self._sampler_state.about(epoch))

    def say_again(self) -> None:
        """Tells a daemon that has taken over what it may not know (rule 5)."""
        said = {} if self._said is None else {self._said.epoch: self._said}
        said |= {each.epoch: as_assumed(each.began_with) for each in self._cursors if each.began_with is not None}
        for epoch in sorted(said):
            self._send(said[epoch])

    def compare(self, cursor: ClientCursor, timeout_s: float) -> int:
        """Waits until the cursor's epoch is planned by rule 1, and has it planned anew as often as it is not. Sets the
        generators of an iterator that begins (rule 4). Returns how many microseconds it waited. Raises what `wait`
        raises."""
        begun = cursor.began_with
        if begun is None:
            wanted = self._sampler_state.about(cursor.epoch)
            if self._said is None or self._said.epoch <= cursor.epoch:
                # For a daemon that takes over: what it plans of itself may be another order than what is ready.
                self._said = wanted
        else:
            wanted = as_assumed(begun)
        waited_us = self._wait(cursor, timeout_s)
        # Rule 2.
        while BEFORE in cursor.states and not is_planned_from(cursor.states[BEFORE], wanted):
            self._plan_anew(wanted)
            waited_us += self._wait(cursor, timeout_s)
        cursor.compared = True
        if self._said is not None and self._said.epoch <= cursor.epoch:
            self._said = None
        if begun is None and BEFORE in cursor.states:
            cursor.began_with = cursor.states[BEFORE]
            after = cursor.states.get(AFTER_FIRST, cursor.began_with)
            self._sampler_state.set(after.states)
            self._sampler_state.advance(cursor.began_with.sampler_epoch, after.sampler_epoch)
            self._sampler_state.go_on(cursor.began_with.attributes, after.attributes)
        return waited_us

    def ended(self, cursor: ClientCursor) -> None:
        """Sets the generators as the sampler has left them at the epoch's end (rule 4)."""
        after, end = cursor.states.get(AFTER_FIRST), cursor.states.get(AT_END)
        if after is not None and end is not None:
            if self._sampler_state.states == after.states:
                self._sampler_state.set(end.states)
            self._sampler_state.advance(after.sampler_epoch, end.sampler_epoch)
            self._sampler_state.go_on(after.attributes, end.attributes)

    def ran_out(self, cursor: ClientCursor, run_out: Callable[[], object]) -> None:
        """Calls run_out() where ended() would set the generators: the end is not known yet, but what is drawn there."""
        after = cursor.states.get(AFTER_FIRST)
        if after is not None and self._sampler_state.states == after.states:
            run_out()

    def _say(self, assumption: Assume) -> None:
        self._said = assumption
        self._send(assumption)

    def _plan_anew(self, wanted: Assume) -> None:
        self._say(wanted)
        # Rule 3. A list: new_number() changes what is iterated over.
        for each in [each for each in self._cursors if each.epoch >= wanted.epoch]:
            former = self._cursors.new_number(each)
            self._send(self._cursors.placed(each))
            self._send(CloseCursor(former))
        kill_point("client.plan.assumed")
