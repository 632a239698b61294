"""The loop is the only place that waits: for descriptors and timers; other work is done in between."""

from __future__ import annotations

import heapq
import itertools
import select
import time
from collections import deque
from collections.abc import Callable

Callback = Callable[[], None]

LONGEST_WAIT_S = 1.0

# What ends a descriptor counts as readable: whoever reads it will be told.
_READABLE = ~select.EPOLLOUT


class Loop:
    """Runs an event loop in a single thread. Implements supervisor.backend.Watcher."""

    def __init__(self) -> None:
        # epoll itself, not selectors: what that adds to each round is a good part of what a batch costs the daemon.
        self._epoll = select.epoll()
        self._readers: dict[int, Callback] = {}
        self._writers: dict[int, Callback] = {}
        self._timers: list[tuple[float, int, Callback]] = []
        self._order = itertools.count()
        self._background: deque[Callable[[], bool]] = deque()
        self._after_each: list[Callback] = []
        self._running = False
        self.keep: object = None

    def watch(self, fd: int, callback: Callback) -> None:
        """Calls `callback` whenever `fd` can be read."""
        self._epoll.register(fd, select.EPOLLIN)
        self._readers[fd] = callback

    def watch_writes(self, fd: int, callback: Callback | None) -> None:
        """Calls `callback` also whenever `fd`, which is watched, can be written; None stops that."""
        self._epoll.modify(fd, select.EPOLLIN | (select.EPOLLOUT if callback is not None else 0))
        if callback is not None:
            self._writers[fd] = callback
        else:
            self._writers.pop(fd, None)

    def unwatch(self, fd: int) -> None:
        """Stops watching `fd`, before it is closed. Raises KeyError when it is not watched."""
        del self._readers[fd]
        self._writers.pop(fd, None)
        self._epoll.unregister(fd)

    def call_later(self, delay_s: float, callback: Callback) -> None:
        heapq.heappush(self._timers, (self.now_s() + delay_s, next(self._order), callback))

    def now_s(self) -> float:
        """Returns the time by the clock that call_later goes by: time.monotonic()."""
        return time.monotonic()

    def in_between(self, step: Callable[[], bool]) -> None:
        """Calls step() again and again, once between events, until it is True. Each call must be short."""
        self._background.append(step)

    def after_each(self, callback: Callback) -> None:
        """Calls `callback` after every round of events, for what is best done once for all of them."""
        self._after_each.append(callback)

    def stop(self) -> None:
        """Lets run() return after this round."""
        self._running = False

    def run(self) -> None:
        """Runs callbacks until stop(). Their exceptions come out here."""
        self._running = True
        while self._running:
            # An earlier callback of a round may close a descriptor, and something else get its number: only those
            # that were watched when the round began, and still are, are called.
            found = [
                (fd, events, self._readers.get(fd), self._writers.get(fd)) for fd, events in self._poll(self._wait_s())
            ]
            for fd, events, on_read, on_write in found:
                if events & select.EPOLLOUT and on_write is not None and self._writers.get(fd) is on_write:
                    on_write()
                if events & _READABLE and on_read is not None and self._readers.get(fd) is on_read:
                    on_read()
            self._run_timers()
            if self._background:
                step = self._background.popleft()
                if not step():
                    self._background.append(step)
            for callback in self._after_each:
                callback()

    def close(self) -> None:
        self._epoll.close()

    def _poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._epoll.poll(timeout_s, max(1, len(self._readers)))

    def _wait_s(self) -> float:
        if self._background:
            return 0.0
        if not self._timers:
            return LONGEST_WAIT_S
        return min(LONGEST_WAIT_S, max(0.0, self._timers[0][0] - time.monotonic()))

    def _run_timers(self) -> None:
        # Only timers that were asked for by now: one that asks for itself again at once must not keep the loop here.
        now, newest = time.monotonic(), next(self._order)
        while self._timers and self._timers[0][0] <= now and self._timers[0][1] < newest:
            heapq.heappop(self._timers)[2]()
