"""Cursors holds the iterators of one loader as its session knows them: where each stands, and what it was offered. The
rules, with the decisions that have the reasons:

1. A cursor waits until its iterator begins, and then lives until that ends (0011). One that was `proposed` is placed
   only if nothing of the stream was there before.
2. A number is used once. A message about a number that is not there was on its way when the cursor ended, and is
   ignored: what it offers is the daemon's again.
3. Messages about another epoch, and offers and voids at a step that the cursor has passed, are ignored as well. To the
   daemon a cursor's epoch is `plan_epoch`, which is 0 where all epochs are equal (0070).
4. A step has an offer, an error in the batch's place, or no batch: a void passes over all steps up to another one
   (0023). The epoch ends at `steps`, as soon as that is known.
5. A recall takes the offers back from a step on, but none that the cursor has passed; the answer says from which step
   on (0011).
6. Where a sampler decides the order, an epoch may be planned anew at any time, by what this trainer or another one has
   said. The states that the new plan begins with come before its first batch; from then on the cursor is to be compared
   anew, and its end is unknown (0021).
7. What was offered is forgotten when another daemon is told the Hello, since that offers anew (0017), and when the
   cursor goes on under another number.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from prefetchd.wire.messages import (
    AWAITED,
    BEFORE,
    LIVING,
    PROPOSED,
    BatchFailed,
    EpochStates,
    PlaceCursor,
    Published,
    Recall,
)
from prefetchd.wire.shard_states import ShardState
from prefetchd_client.session.run_ahead import EVERY_EPOCH, RunAhead


@dataclasses.dataclass(slots=True)
class ClientCursor:
    """Is one iterator's place. `offers` by step are (slot, generation, private), or the error in the batch's place;
    `voids` by step are the next step that may have a batch (rule 4).

    Where an iterable dataset has a state: `shard_states` by shard, after its last batch that was yielded. Where a
    sampler decides the order: `states` by stage as EpochStates tells them; `compared` with what is here, or with what
    the iterator `began_with` (rule 6).

    `yielded` batches it has had in this process; `reported_length` is what len() of an iterable dataset had told when
    the iterator was made. `epoch` is the loader's, `plan_epoch` the daemon's (rule 3).
    """

    number: int
    epoch: int
    step: int
    waiting: bool
    plan_epoch: int
    yielded: int = 0
    reported_length: int | None = None
    offers: dict[int, tuple[int, int, bool] | bytes] = dataclasses.field(default_factory=dict)
    voids: dict[int, int] = dataclasses.field(default_factory=dict)
    steps: int | None = None
    states: dict[int, EpochStates] = dataclasses.field(default_factory=dict)
    began_with: EpochStates | None = None
    compared: bool = False
    proposed: bool = False
    shard_states: dict[int, ShardState] = dataclasses.field(default_factory=dict)

    @property
    def is_offered(self) -> bool:
        """True when the next batch can be had."""
        step = self.step
        while step in self.voids:
            step = self.voids[step]
        return step in self.offers

    def pass_voids(self) -> None:
        """Goes on to the next step that may have a batch."""
        while self.step in self.voids:
            self.step = self.voids.pop(self.step)


def _waiting_code(cursor: ClientCursor) -> int:
    if not cursor.waiting:
        return LIVING
    return PROPOSED if cursor.proposed else AWAITED


class EndOfEpoch(Exception):  # noqa: N818 - it is none
    """The cursor's epoch has no further batch."""


class Cursors:
    """Holds the cursors that live or wait, by number, and takes what the daemon says of them by the rules 1 to 7."""

    def __init__(self, ahead: RunAhead = EVERY_EPOCH) -> None:
        self.ahead = ahead
        """Whether batches of an epoch are made before it begins, as the daemon is told with each cursor."""
        self._cursors: dict[int, ClientCursor] = {}
        self._next = 1

    def __iter__(self) -> Iterator[ClientCursor]:
        return iter(self._cursors.values())

    def get(self, number: int) -> ClientCursor | None:
        return self._cursors.get(number)

    def new(self, epoch: int, step: int, plan_epoch: int, *, proposed: bool = False) -> ClientCursor:
        """Makes a waiting cursor."""
        cursor = ClientCursor(self._next, epoch, step, True, plan_epoch, proposed=proposed)
        self._next += 1
        self._cursors[cursor.number] = cursor
        return cursor

    def end(self, cursor: ClientCursor) -> bool:
        """Ends the cursor. Returns False when it had ended before."""
        return self._cursors.pop(cursor.number, None) is not None

    def new_number(self, cursor: ClientCursor) -> int:
        """Has the cursor go on under another number, with nothing offered (rule 7). Returns the former number."""
        former = cursor.number
        del self._cursors[former]
        cursor.number = self._next
        self._next += 1
        self._cursors[cursor.number] = cursor
        self._forget(cursor)
        return former

    def placed(self, cursor: ClientCursor, *, anew: bool = False) -> PlaceCursor:
        """Return the message that places the cursor where it stands, or begins its iterator."""
        place = (cursor.number, cursor.plan_epoch, cursor.step, cursor.waiting)
        return PlaceCursor(*place, self.ahead.ahead, self.ahead.why, anew)

    def as_rows(self) -> tuple[tuple[int, ...], ...]:
        """Returns (number, epoch, step, waiting) of each cursor, as Hello says it."""
        return tuple((each.number, each.plan_epoch, each.step, _waiting_code(each)) for each in self)

    def forget_offers(self) -> None:
        """Forgets what all cursors were offered (rule 7)."""
        for cursor in self:
            self._forget(cursor)

    @staticmethod
    def _forget(cursor: ClientCursor) -> None:
        cursor.offers, cursor.voids, cursor.steps, cursor.states, cursor.compared = {}, {}, None, {}, False

    def planned(self, message: EpochStates) -> None:
        cursor = self.get(message.cursor)
        if cursor is not None and message.epoch == cursor.plan_epoch:
            if message.stage == BEFORE and message != cursor.states.get(BEFORE):
                # Rule 6. States that are told once more are no new plan.
                cursor.compared, cursor.steps = False, None
            cursor.states[message.stage] = message

    def published(self, message: Published) -> None:
        for number, epoch, first, private, *pairs in message.batches:
            cursor = self.get(number)
            if cursor is None or epoch != cursor.plan_epoch:
                continue
            for place in range(0, len(pairs), 2):
                step = first + place // 2
                if step >= cursor.step:
                    cursor.offers[step] = (pairs[place], pairs[place + 1], bool(private))
        for number, epoch, first, end in message.voids:
            cursor = self.get(number)
            if cursor is not None and epoch == cursor.plan_epoch and first >= cursor.step:
                cursor.voids[first] = end
        for number, epoch, steps in message.ends:
            cursor = self.get(number)
            if cursor is not None and epoch == cursor.plan_epoch:
                cursor.steps = steps

    def failed(self, message: BatchFailed) -> None:
        cursor = self.get(message.cursor)
        if cursor is not None and message.epoch == cursor.plan_epoch and message.step >= cursor.step:
            cursor.offers[message.step] = message.error

    def recalled(self, message: Recall) -> tuple[int, int] | None:
        """Takes the offers back by rule 5. Returns (cursor, step) from which on, or None when there is no such
        cursor."""
        cursor = self.get(message.cursor)
        if cursor is None:
            return None
        step = max(message.step, cursor.step)
        cursor.offers = {at: offer for at, offer in cursor.offers.items() if at < step}
        return cursor.number, step
