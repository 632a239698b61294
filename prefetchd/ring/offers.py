"""Records to whom each slot's batch is offered, in the ring's segment: what a consumer may still take when its daemon
has died. Pure but for the memory that it is given.

A word a slot (OFFER): bit c says that consumer c was offered the batch to copy it, bit CONSUMERS + c that it was
offered the batch itself, which it may write to. A bit is set before the offer is sent, and cleared after its lease has
ended: the word may say too much, never too little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from prefetchd.wire.messages import Published
from prefetchd.wire.segment_layout import CONSUMERS


class Offers:
    """The offers of one ring. `words` is its memory, one number a slot, or a list."""

    def __init__(self, words: Any) -> None:
        self._words = words

    def record(self, consumer: int, message: Published) -> None:
        """Records the offers in `message`, which is about to be sent to the consumer."""
        for _, _, _, copies, *pairs in message.batches:
            bit = 1 << (consumer if copies else CONSUMERS + consumer)
            for slot in pairs[::2]:
                self._words[slot] |= bit

    def clear_released(
        self, consumer: int, is_leased: Callable[[int], bool], slots: Iterable[int] | None = None
    ) -> None:
        """Clears the consumer's bits on `slots`, or on all, where its lease has ended: `is_leased` says on which it has
        one. Unknown slots are ignored."""
        bits = _bits(consumer)
        for slot in range(len(self._words)) if slots is None else slots:
            if 0 <= slot < len(self._words) and self._words[slot] & bits and not is_leased(slot):
                self._words[slot] &= ~bits

    def claimed(self, slot: int) -> None:
        """Clears the slot's word: another batch is about to take the slot."""
        self._words[slot] = 0

    def words(self, slots: int) -> tuple[int, ...]:
        """Returns the words of the first `slots` slots."""
        return tuple(self._words[:slots])


def takers(word: int) -> tuple[frozenset[int], frozenset[int]]:
    """Decodes a word: the consumers that may copy the batch, and those that may have it itself."""
    copies = frozenset(consumer for consumer in range(CONSUMERS) if word >> consumer & 1)
    return copies, frozenset(consumer for consumer in range(CONSUMERS) if word >> CONSUMERS + consumer & 1)


def _bits(consumer: int) -> int:
    return 1 << consumer | 1 << CONSUMERS + consumer
