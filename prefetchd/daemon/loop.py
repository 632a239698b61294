"""The only place that waits: descriptors, timers, and work that is done in between."""

from __future__ import annotations

import heapq
import itertools
import selectors
import time
from collections import deque
from collections.abc import Callable

Callback = Callable[[], None]

LONGEST_WAIT_S = 1.0


class Loop:
    """A single-threaded event loop. Implements workers.backend.Watcher."""

    def __init__(self) -> None:
        self._selector = selectors.EpollSelector()
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self._background: deque[Callable[[], bool]] = deque()
        self._after_each: list[Callback] = []
        self._running = False
        self.keep: object = None

    def watch(self, fd: int, callback: Callback) -> None:
        """`callback` whenever `fd` can be read."""
        self._selector.register(fd, selectors.EVENT_READ, (callback, None))

    def watch_writes(self, fd: int, callback: Callback | None) -> None:
        """`callback` also whenever `fd` can be written; None stops that."""
        read = self._selector.get_key(fd).data[0]
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if callback is not None else 0)
        self._selector.modify(fd, events, (read, callback))

    def unwatch(self, fd: int) -> None:
        """Raises KeyError when `fd` is not watched."""
        self._selector.unregister(fd)

    def call_later(self, delay_s: float, callback: Callback) -> None:
        heapq.heappush(self._timers, (time.monotonic() + delay_s, next(self._order), callback))

    def in_between(self, step: Callable[[], bool]) -> None:
        """step() again and again, one call between events, until it is True. Each must be short."""
        self._background.append(step)

    def after_each(self, callback: Callback) -> None:
        """`callback` after every round of events, for what is best done once for all of them."""
        self._after_each.append(callback)

    def stop(self) -> None:
        """run() returns after this round."""
        self._running = False

    def run(self) -> None:
        """Until stop(). Exceptions of callbacks come out here."""
        self._running = True
        while self._running:
            for key, events in self._selector.select(self._wait_s()):
                on_read, on_write = key.data
                if events & selectors.EVENT_WRITE and on_write is not None and self._is_watched(key):
                    on_write()
                if events & selectors.EVENT_READ and self._is_watched(key):
                    on_read()
            self._run_timers()
            if self._background:
                step = self._background.popleft()
                if not step():
                    self._background.append(step)
            for callback in self._after_each:
                callback()

    def close(self) -> None:
        self._selector.close()

    def _is_watched(self, key: selectors.SelectorKey) -> bool:
        # An earlier callback of this round may have closed it, and something else may have got its number.
        found = self._selector.get_map().get(key.fd)
        return found is not None and found.data is key.data

    def _wait_s(self) -> float:
        if self._background:
            return 0.0
        if not self._timers:
            return LONGEST_WAIT_S
        return min(LONGEST_WAIT_S, max(0.0, self._timers[0][0] - time.monotonic()))

    def _run_timers(self) -> None:
        # Those that were asked for by now: one that asks for itself again at once must not keep the loop here.
        now, newest = time.monotonic(), next(self._order)
        while self._timers and self._timers[0][0] <= now and self._timers[0][1] < newest:
            heapq.heappop(self._timers)[2]()
