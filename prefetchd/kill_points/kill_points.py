"""Implements kill points: labelled places where a process may be made to kill itself, so that tests can kill anything
anywhere.

Nothing happens at any of them unless PREFETCHD_KILL_POINTS was set when this process imported prefetchd. It is a list
of orders with commas in between:

    daemon.publish.leased:3          SIGKILL to whoever passes this point for the third time
    worker.*:p=0.001:seed=7          at each passing of such a point, with this probability
    @/path/to/file                   the one order in that file, now and whenever it is rewritten (see write_order)

kill_point_table.py has all points. A point's name begins with the role of the process that passes it: daemon, env or
zygote (which fork streams' zygotes, workers and planners), worker, planner, client. Passings are counted process by
process. Each kill is logged first: one line (point, pid, role, seconds of the monotonic clock) at the end of the file
that PREFETCHD_KILL_LOG names.
"""

from __future__ import annotations

import contextlib
import fnmatch
import mmap
import os
import random
import signal
import time
from collections.abc import Callable

ORDERS_VARIABLE = "PREFETCHD_KILL_POINTS"
LOG_VARIABLE = "PREFETCHD_KILL_LOG"
ORDER_BYTES = 128


class NthPassing:
    """An order that is due at the `nth` passing of a point that matches `pattern`."""

    def __init__(self, pattern: str, nth: int) -> None:
        self._pattern = pattern
        self._left = nth

    def is_due(self, point: str) -> bool:
        """Counts a passing of `point`. Returns True when its process is to die there."""
        if not fnmatch.fnmatchcase(point, self._pattern):
            return False
        self._left -= 1
        return self._left == 0


class RandomPassings:
    """An order that is due, with a probability, at each passing of a point that matches `pattern`. Forked processes go
    on with random numbers of their own, the same in each run with the same `seed`."""

    def __init__(self, pattern: str, probability: float, seed: int) -> None:
        self._pattern = pattern
        self._probability = probability
        self._random = random.Random(seed)
        self._next_seed = 0
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    def is_due(self, point: str) -> bool:
        return fnmatch.fnmatchcase(point, self._pattern) and self._random.random() < self._probability

    def _before_fork(self) -> None:
        self._next_seed = self._random.getrandbits(64)

    def _after_fork(self) -> None:
        self._random = random.Random(self._next_seed)


class OrderInFile:
    """One order at a time, read from a file that its owner rewrites; of all processes that read it one dies of it."""

    def __init__(self, path: str) -> None:
        self._path = path
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(fd, ORDER_BYTES, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        self._seen = b""
        self._number = ""
        self._order: NthPassing | None = None

    def is_due(self, point: str) -> bool:
        order = self._memory[:]
        if order != self._seen:
            self._seen = order
            self._order = self._read(order)
        return self._order is not None and self._order.is_due(point) and self._is_first()

    def _read(self, order: bytes) -> NthPassing | None:
        words = order.rstrip(b"\0").decode("ascii").split()
        # Its number at both ends: else it is being rewritten just now.
        if len(words) != 4 or words[0] != words[3]:
            return None
        self._number = words[0]
        return NthPassing(words[1], int(words[2]))

    def _is_first(self) -> bool:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(f"{self._path}.{self._number}", os.O_CREAT | os.O_EXCL, 0o600))
            return True
        return False


def write_order(path: str | os.PathLike[str], number: int, pattern: str = "", nth: int = 1) -> None:
    """Writes the order that processes with @path follow from now on; `number` is new with each, and the process that
    dies of it first makes the file `path`.`number`. An empty `pattern` is no order."""
    order = f"{number} {pattern} {nth} {number}" if pattern else ""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, order.encode("ascii").ljust(ORDER_BYTES, b"\0"), 0)
    finally:
        os.close(fd)


def parse_orders(text: str) -> list[NthPassing | RandomPassings | OrderInFile]:
    """Parses what PREFETCHD_KILL_POINTS says. Raises ValueError."""
    return [_parse(order.strip()) for order in text.split(",") if order.strip()]


def _parse(order: str) -> NthPassing | RandomPassings | OrderInFile:
    if order.startswith("@"):
        return OrderInFile(order[1:])
    pattern, *settings = order.split(":")
    if settings and settings[0].startswith("p="):
        given = dict(setting.split("=", 1) for setting in settings)
        return RandomPassings(pattern, float(given["p"]), int(given.get("seed", "0")))
    if len(settings) > 1:
        raise ValueError(f"kill point {order!r}; allowed: NAME:NTH, PATTERN:p=PROBABILITY:seed=NUMBER, @FILE")
    return NthPassing(pattern, int(settings[0]) if settings else 1)


def killer(orders: list[NthPassing | RandomPassings | OrderInFile], log: str) -> Callable[[str], None]:
    """Makes a kill_point() that follows `orders` and appends to the file `log`, if that has a name."""

    def kill_point(point: str) -> None:
        # Each order sees each passing, even of one that another order ends.
        if sum(order.is_due(point) for order in orders):
            _die(point, log)

    return kill_point


def _die(point: str, log: str) -> None:
    if log:
        fd = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(fd, f"{point} {os.getpid()} {point.split('.')[0]} {time.monotonic():.6f}\n".encode())
    os.kill(os.getpid(), signal.SIGKILL)
    while True:  # the signal is on its way
        signal.pause()


def _pass(point: str) -> None:
    """Does nothing: no order was given."""


_orders = os.environ.get(ORDERS_VARIABLE, "")

kill_point: Callable[[str], None] = _pass
if _orders:
    kill_point = killer(parse_orders(_orders), os.environ.get(LOG_VARIABLE, ""))
"""kill_point(name): this process may be killed here."""
