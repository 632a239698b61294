"""Where a sampler decides the order: the trainer's side of what its planner assumes (assumptions)."""

from __future__ import annotations

from collections.abc import Callable

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.messages import AFTER_FIRST, AT_END, BEFORE, Assume, CloseCursor, Message, PlaceCursor
from prefetchd_client.session.cursors import ClientCursor, Cursors
from prefetchd_client.session.sampler_state import SamplerState, as_assumed


class EpochPlans:
    """`send` tells the daemon, `wait(cursor, timeout_s)` waits until the cursor's next batch is offered, or its end
    known, and says how many microseconds that took."""

    def __init__(
        self,
        assumptions: SamplerState,
        cursors: Cursors,
        send: Callable[[Message], None],
        wait: Callable[[ClientCursor, float], int],
    ) -> None:
        self._assumptions = assumptions
        self._cursors = cursors
        self._send = send
        self._wait = wait
        # What was said of an epoch that no iterator was seen to begin yet.
        self._said: Assume | None = None

    def assume(self, epoch: int) -> None:
        """The next iterator begins `epoch` as sampler and generators are now."""
        self._say(self._assumptions.about(epoch))

    def say_again(self) -> None:
        """To a daemon that may know nothing of what living iterators began with, and the next one begins with."""
        said = {} if self._said is None else {self._said.epoch: self._said}
        said |= {each.epoch: as_assumed(each.began_with) for each in self._cursors if each.began_with is not None}
        for epoch in sorted(said):
            self._send(said[epoch])

    def compare(self, cursor: ClientCursor, timeout_s: float) -> int:
        """Was the cursor's epoch planned from what sampler and generators are now, or were when it began? If not, it is
        planned anew. Leaves the generators of one that begins as after the sampler's first batch. How many microseconds
        it waited. Raises what `wait` raises."""
        begun = cursor.began_with
        if begun is None:
            wanted = self._assumptions.about(cursor.epoch)
            if self._said is None or self._said.epoch <= cursor.epoch:
                # For a daemon that takes over: what it plans of itself may be another order than what is ready.
                self._said = wanted
        else:
            wanted = as_assumed(begun)
        waited_us = self._wait(cursor, timeout_s)
        # Again and again: a daemon that takes over meanwhile knows nothing of what was assumed.
        while BEFORE in cursor.states and as_assumed(cursor.states[BEFORE]) != wanted:
            self._plan_anew(wanted)
            waited_us += self._wait(cursor, timeout_s)
        cursor.compared = True
        if self._said is not None and self._said.epoch <= cursor.epoch:
            self._said = None
        if begun is None and BEFORE in cursor.states:
            cursor.began_with = cursor.states[BEFORE]
            self._assumptions.set(cursor.states.get(AFTER_FIRST, cursor.began_with).states)
        return waited_us

    def ended(self, cursor: ClientCursor) -> None:
        """The epoch is over: generators are left as the sampler has left them, unless somebody else has drawn."""
        after, end = cursor.states.get(AFTER_FIRST), cursor.states.get(AT_END)
        if after is not None and end is not None and self._assumptions.states == after.states:
            self._assumptions.set(end.states)

    def ran_out(self, cursor: ClientCursor, run_out: Callable[[], object]) -> None:
        """As ended(), before the end is known."""
        after = cursor.states.get(AFTER_FIRST)
        if after is not None and self._assumptions.states == after.states:
            run_out()

    def _say(self, assumption: Assume) -> None:
        self._said = assumption
        self._send(assumption)

    def _plan_anew(self, wanted: Assume) -> None:
        self._say(wanted)
        # Placed before the others are closed: what is ready may still be wanted.
        for each in [each for each in self._cursors if each.epoch >= wanted.epoch]:
            former = self._cursors.new_number(each)
            self._send(PlaceCursor(each.number, each.epoch, each.step, each.waiting))
            self._send(CloseCursor(former))
        kill_point("client.plan.assumed")
