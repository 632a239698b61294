"""Says how much a ring may grow by itself: arithmetic on what there is. Pure.

Rules
 1. Of what was free when the daemon began, RING_SPARE stays free, in the store and of the machine's memory or the
    cgroup's: for workers, for rings of other streams, and for other programs.
 2. When less than SHORT of it is free, rings give up what they have to spare, those that have most of it first.
"""

from __future__ import annotations

from collections.abc import Mapping

from prefetchd.wire.records import record

RING_SPARE = 0.5
SHORT = 0.125


@record
class Free:
    """What is free, in bytes, and what was `first`, when the daemon began; of memory or of a store."""

    bytes: int
    first_bytes: int

    @property
    def to_grow_bytes(self) -> int:
        """What rings may take by themselves (rule 1)."""
        return max(0, self.bytes - int(RING_SPARE * self.first_bytes))

    @property
    def missing_bytes(self) -> int:
        """What rings are to give up (rule 2)."""
        return max(0, int(SHORT * self.first_bytes) - self.bytes)


def who_gives(missing_bytes: int, spare_bytes: Mapping[int, int]) -> dict[int, int]:
    """Returns how many bytes each stream gives up so that `missing_bytes` come together, as far as there are so many to
    spare."""
    given = {}
    for stream, spare in sorted(spare_bytes.items(), key=lambda each: -each[1]):
        if missing_bytes <= 0:
            break
        if spare > 0:
            given[stream] = min(spare, missing_bytes)
            missing_bytes -= given[stream]
    return given
