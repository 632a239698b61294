"""Supply tells whether a stream's consumers are about to wait: what lies ready before them, against what they take.
Pure.

Inputs: the stream's cursors and batches, and for each consumer what it has taken lately (Pace).

Rules
 1. A consumer is short when a call of its next() waits, or when it has no more ready before it, without a gap, than
    it takes in a second. FEW_AHEAD are few in any case (or half of what it may have ahead, where that is less): it may
    just be about to begin.
 2. What it takes in a second is the most that it has taken in one, of which half is forgotten in half a minute. Who
    takes a burst and pauses is not mistaken for one that needs little.
 3. A consumer walks on: where the rest of an iterator's epoch is ready, what is ready of the next one counts as well.
 4. A stream is short when one of its consumers is. Without a cursor it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from prefetchd.daemon.engine.stream.window import Window
from prefetchd.ring.cursors import MOST_EMPTY_EPOCHS, Cursor

FEW_AHEAD = 4
"""The number of batches that are few in any case (rule 1)."""

MOST_UNTOLD = 16
"""The number of batches that are told of at once, at most (MOST of prefetchd_client.session.progress)."""

REMEMBERED = 0.98
"""The share of the most taken in a second that counts after another second (rule 2)."""


class Pace:
    """Measures how many batches one consumer takes in a second."""

    def __init__(self) -> None:
        self._second = 0
        self._count = 0
        # The most of all seconds before that one.
        self._most = 0.0
        self._told_s = 0.0

    def took(self, batches: int, now_s: float) -> None:
        """Notes that the consumer has taken so many more batches."""
        second = int(now_s)
        if second > self._second:
            self._most = self._before(second)
            self._second, self._count = second, 0
        self._count += batches
        self._told_s = now_s

    def lately(self, now_s: float) -> float:
        """Returns the most batches that the consumer has taken in a second; the older a second is, the less it counts
        (rule 2)."""
        second = int(now_s)
        return max(self._most, self._count) if second <= self._second else self._before(second)

    def untold(self, now_s: float) -> float:
        """Returns how many batches the consumer may have taken since it last told of some: it does not tell of each."""
        return min(MOST_UNTOLD, self.lately(now_s) * max(0.0, now_s - self._told_s))

    def _before(self, second: int) -> float:
        passed = second - self._second - 1
        return float(max(self._most * REMEMBERED, self._count) * REMEMBERED**passed)


def is_short(window: Window, taken: Callable[[Hashable], float]) -> bool:
    """True when a consumer is about to wait (rules 1 to 4); `taken(consumer)` is what it takes in a second."""
    by_consumer: dict[Hashable, list[Cursor]] = {}
    for cursor in window.cursors.values():
        by_consumer.setdefault(cursor.consumer, []).append(cursor)
    return any(is_about_to_wait(window, cursors, taken(consumer)) for consumer, cursors in by_consumer.items())


def is_about_to_wait(window: Window, cursors: list[Cursor], taken: float) -> bool:
    """True when the consumer that has these cursors, and no others, is short (rules 1 to 3)."""
    waiting = [each for each in cursors if each.waiting]
    for cursor in [each for each in cursors if not each.waiting] or waiting:
        if cursor.blocked:
            return True
        few = max(min(FEW_AHEAD, window.limit(cursor) // 2), 1)
        enough = int(max(few, taken)) + 1
        ready, has_ended = _ready(window, cursor, enough)
        if has_ended and not cursor.waiting:
            if not waiting:
                # It has all that it will ever want.
                continue
            ready += _ready(window, waiting[0], enough - ready)[0]
        if ready < enough:
            return True
    return False


def _ready(window: Window, cursor: Cursor, most: int) -> tuple[int, bool]:
    """Counts the batches that are ready before the cursor, without a gap, up to `most`; and says whether its epoch has
    ended with them. A waiting cursor's walk goes on through the epochs that follow."""
    lengths = window.lengths
    count, position, ends = lengths.distance(cursor.next, cursor.offered), cursor.offered, 0
    while count < most:
        if lengths.is_end(position):
            ends += 1
            if not cursor.waiting or ends > MOST_EMPTY_EPOCHS:
                return count, True
            position = lengths.skip_voids((position[0] + 1, 0))
            continue
        batch = window.batches.get(position)
        if batch is None or not batch.done:
            break
        count, position, ends = count + 1, lengths.skip_voids(lengths.after(position)), 0
    return count, False
