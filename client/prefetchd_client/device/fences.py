"""Fences keeps batches that nobody holds, but that a device may still read: tensor.to(device, non_blocking=True)
returns before it has read the tensor, and torch keeps no account of pinned memory that is not its own.

So what was dropped is released after an event on the current stream of every device, recorded when the drop is seen,
which is at the next next(). Work on other streams must be told: record_stream().
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

from prefetchd_client.device.backend import DeviceBackend, Event, Stream


class Fences:
    """Guards a queue of dropped batches, (cursor, slot, generation) each. The devices may be at most `most()` fences
    behind, one fence for the drops seen at a time; a trainer that is faster waits for them. One thread at a time."""

    def __init__(self, backend: DeviceBackend, most: Callable[[], int]) -> None:
        self._backend = backend
        self._most = most
        self._fences: deque[tuple[int, list[Event]]] = deque()
        self._covered = 0
        self._streams: dict[int, list[Stream]] = {}

    def record_stream(self, slot: int, stream: Stream) -> None:
        """Notes that the batch in `slot` is read on `stream` too."""
        self._streams.setdefault(slot, []).append(stream)

    def passed(self, dropped: deque[Any]) -> int:
        """Returns how many batches from the left of the queue no device reads any more; the caller takes them out of
        it. Returns 0 while a graph is captured. Raises nothing: that a device has failed is told by what its user asks
        of it."""
        if self._backend.is_capturing():
            return 0
        passed = 0
        with contextlib.suppress(RuntimeError):
            self._cover(dropped)
            for place in range(len(self._fences) - self._most()):
                for event in self._fences[place][1]:
                    event.synchronize()
            while self._fences and all(event.query() for event in self._fences[0][1]):
                passed += self._fences.popleft()[0]
        self._covered -= passed
        return passed

    def _cover(self, dropped: deque[Any]) -> None:
        """Puts a fence behind what was dropped since the last one."""
        # A finalizer may append at any moment.
        count = len(dropped)
        if count > self._covered:
            slots = [dropped[place][1] for place in range(self._covered, count)]
            # Another's events are no use if one cannot be had: nothing is covered then.
            self._fences.append((len(slots), self._record(slots)))
            self._covered = count

    def _record(self, slots: list[int]) -> list[Event]:
        streams = self._backend.current_streams()
        for slot in slots:
            streams += [each for each in self._streams.get(slot, ()) if each not in streams]
        events = [self._backend.record(stream) for stream in streams]
        for slot in slots:
            self._streams.pop(slot, None)
        return events
