"""A Stopwatch tells what a trainer waits for: its first batch, and all others together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any


class Stopwatch:
    """Starts when it is made.

    first_batch_s      from its start to the first batch
    first_batch_at_s   when that was, on the system's monotonic clock; 0 before
    stalled_s          time in next() after the first batch
    """

    def __init__(self) -> None:
        self._started_s = time.monotonic()
        self.first_batch_at_s = 0.0
        self.stalled_s = 0.0

    @property
    def first_batch_s(self) -> float:
        return self.first_batch_at_s - self._started_s

    def since_first_batch_s(self) -> float:
        return time.monotonic() - self.first_batch_at_s

    def timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yields the batches, and counts the time that each takes to come."""
        while True:
            asked_s = time.monotonic()
            try:
                batch = next(batches)
            except StopIteration:
                return
            got_s = time.monotonic()
            if self.first_batch_at_s:
                self.stalled_s += got_s - asked_s
            else:
                self.first_batch_at_s = got_s
            yield batch
            # A slot is free again once nobody has its batch.
            del batch
