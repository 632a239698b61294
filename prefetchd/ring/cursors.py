"""Moves cursors: where each living iterator stands, what was offered to it, and how far ahead it is filled. Pure.

    next      the next batch to be yielded          offered   the first one that was not offered yet
    fill      the first one that was not claimed    next <= offered <= fill, in the order of the walk

The rules, whose reasons are in decisions 0011 (waiting cursors) and 0023 (void steps):

1. A cursor walks its epoch and ends with it (`walks`). A waiting cursor, the next iterator's, walks on through the
   epochs that follow.
2. None of the three positions is void. When more steps turn out to be void, they are passed (`pass_voids`).
3. `fill` passes what is claimed already. It stops `limit` batches ahead of `next`, and where the epoch is complete
   (`advance_fill`).
4. While an epoch's end is unknown, its next step follows each step (`after`). `fill` may have passed the end when that
   is learnt: then a living cursor has nothing more to claim, and a waiting one goes on with the next epoch.
5. A waiting cursor looks no further than MOST_EMPTY_EPOCHS epochs without a batch: there may be no end of such epochs
   (`_seems_empty`).
6. When a batch is gone that was claimed and not offered, `fill` goes back to it (`forget_from`). One that was offered
   is leased, and goes back with its offer.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Hashable

from prefetchd.wire.stream_spec import POSITION_LIMIT, Position

KEPT_LENGTHS = 65536
"""How many epochs' lengths are remembered at least."""


class EpochLengths:
    """The steps of epochs: the same for all (`steps`), or learnt epoch by epoch (`steps` is None), of which the latest
    are remembered. Here each step has a batch; where steps may be void, see shard_lengths."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self._learnt: dict[int, int] = {}
        # Of the epochs from `_first` on that were learnt without a gap: the steps before each, and before the next.
        self._first = 0
        self._before = [0]

    def steps(self, epoch: int) -> int | None:
        """Returns the epoch's steps, or None when nobody knows yet."""
        return self._steps if self._steps is not None else self._learnt.get(epoch)

    def learn(self, epoch: int, steps: int) -> None:
        """Records that an epoch of unknown length has ended after `steps`."""
        if self._learnt.get(epoch) == steps:
            return
        if epoch in self._learnt:
            self.forget(range(epoch, POSITION_LIMIT))
        self._learnt[epoch] = steps
        if epoch != self._first + len(self._before) - 1:
            self._first, self._before = epoch, [0]
        self._before.append(self._before[-1] + steps)
        # By halves: a list is not shortened at its beginning for nothing.
        if len(self._learnt) > 2 * KEPT_LENGTHS:
            for known in list(itertools.islice(self._learnt, KEPT_LENGTHS)):
                del self._learnt[known]
            passed = max(0, len(self._before) - 1 - KEPT_LENGTHS)
            self._first += passed
            del self._before[:passed]

    def forget(self, epochs: range) -> None:
        """Forgets what was learnt of these epochs: it holds no longer."""
        for known in [each for each in self._learnt if each in epochs]:
            del self._learnt[known]
        if epochs.start >= self._first:
            del self._before[epochs.start - self._first + 1 :]
        elif epochs.stop > self._first:
            self._first, self._before = epochs.start, [0]

    def after(self, position: Position) -> Position:
        """Returns the position that follows; while the epoch's end is unknown, its next step (rule 4)."""
        epoch, step = position
        steps = self.steps(epoch)
        return (epoch + 1, 0) if steps is not None and step + 1 >= steps else (epoch, step + 1)

    def distance(self, start: Position, end: Position) -> int:
        """Counts the batches from `start` to `end`, which is not before it."""
        within = self._batches_before(end) - self._batches_before(start)
        if start[0] == end[0]:
            return within
        if self._steps is not None:
            return (end[0] - start[0]) * self._steps + within
        first, last = start[0] - self._first, end[0] - self._first
        if first >= 0 and last < len(self._before):
            between = self._before[last] - self._before[first]
        else:
            between = sum(self._learnt.get(epoch, 0) for epoch in range(start[0], end[0]))
        return between + within

    def is_end(self, position: Position) -> bool:
        """Returns True when the epoch ends there or before."""
        steps = self.steps(position[0])
        return steps is not None and position[1] >= steps

    def is_void(self, position: Position) -> bool:
        """Returns True when there is no batch at that step, and some may follow in the epoch."""
        return False

    def skip_voids(self, position: Position) -> Position:
        """Returns the first position of the epoch from `position` on that is not void, or the epoch's end."""
        return position

    def _batches_before(self, position: Position) -> int:
        """Counts the batches of the epoch before `position`."""
        return position[1]


MOST_EMPTY_EPOCHS = 8
"""How many epochs without a batch a waiting cursor passes at most (rule 5)."""


@dataclasses.dataclass(slots=True)
class Cursor:
    """One living iterator of one consumer; `key` tells it from all others of the stream.

    waiting     the next iterator's: filled ahead, not yet asked for a batch
    blocked     a call of next() waits for its next batch
    knows_end   its consumer knows where the epoch ends
    recalled    so often its consumer was asked to give offers back, and has not answered
    informed_to its consumer knows of all steps before this one: that they were offered, or are void
    reach       so many batches it may have ahead at most
    plan_confirmed
                its consumer has said how the epoch begins, or reported a batch that it was given: what the epoch is
                planned from is what the consumer means
    """

    key: Hashable
    consumer: Hashable
    waiting: bool
    next: Position
    offered: Position
    fill: Position
    blocked: bool = False
    knows_end: bool = False
    recalled: int = 0
    informed_to: int = 0
    plan_confirmed: bool = False
    reach: int = POSITION_LIMIT

    @property
    def epoch(self) -> int:
        return self.next[0]

    def wants(self, position: Position) -> bool:
        """Returns True while a batch at `position` is still to be offered to this cursor."""
        if position < self.offered:
            return False
        return self.waiting or position[0] == self.offered[0]

    def walks(self, position: Position) -> bool:
        """Returns True when `position` lies in the part of the walk that this cursor may fill."""
        return self.waiting or position[0] == self.next[0]


def new_cursor(key: Hashable, consumer: Hashable, position: Position, waiting: bool, lengths: EpochLengths) -> Cursor:
    """Makes a cursor that stands at `position` with nothing offered; it may also stand at an epoch's very end."""
    first = fill = lengths.skip_voids(position)
    if waiting and lengths.is_end(position) and lengths.steps(position[0] + 1) != 0:
        fill = lengths.skip_voids((position[0] + 1, 0))
    return Cursor(key, consumer, waiting, first, first, fill, informed_to=position[1])


def pass_voids(cursor: Cursor, lengths: EpochLengths) -> None:
    """Moves the cursor past steps that have turned out to be void (rule 2)."""
    cursor.next = lengths.skip_voids(cursor.next)
    cursor.offered = lengths.skip_voids(cursor.offered)
    cursor.fill = lengths.skip_voids(cursor.fill)


def advance_fill(
    cursor: Cursor, lengths: EpochLengths, limit: int, is_claimed: Callable[[Position], bool]
) -> Position | None:
    """Returns the next batch to claim for `cursor`, by rules 3 to 5; None when it has `limit` batches ahead, or its
    epoch is complete.

    Passes by what is claimed already; amortised O(1) a batch.
    """
    while True:
        position = cursor.fill
        if not cursor.walks(position) or _seems_empty(cursor.next[0], position, lengths):
            return None
        if lengths.is_end(position):
            # Reached before anybody knew that it was the end; or an empty epoch.
            if not cursor.waiting:
                return None
            cursor.fill = (position[0] + 1, 0)
            continue
        if lengths.is_void(position):
            cursor.fill = lengths.skip_voids(position)
            continue
        if lengths.distance(cursor.next, position) >= limit:
            return None
        if not is_claimed(position):
            return position
        cursor.fill = lengths.after(position)


def _seems_empty(first: int, position: Position, lengths: EpochLengths) -> bool:
    """Returns True when the latest MOST_EMPTY_EPOCHS epochs before `position`, all from epoch `first` on, had no
    batch."""
    epoch, step = position
    return (
        step == 0
        and epoch - first >= MOST_EMPTY_EPOCHS
        and all(lengths.steps(epoch - back) == 0 for back in range(1, MOST_EMPTY_EPOCHS + 1))
    )


def forget_from(cursor: Cursor, position: Position) -> None:
    """Moves `fill` back to the batch at `position`, which is gone, if the cursor has claimed it and was not offered it
    (rule 6)."""
    if cursor.offered <= position < cursor.fill:
        cursor.fill = position
