"""SingleThreadGuard lets one thread at a time in: another one gets an error, and nothing is mixed up."""

from __future__ import annotations

import threading

from prefetchd.wire.errors import CallerError


class SingleThreadGuard:
    """Guards a block of code, as a context manager. Raises CallerError for a second thread; never blocks. It is no
    lock: a signal between two lines would leave that locked, and here the same thread comes in again."""

    __slots__ = ("_inside",)

    def __init__(self) -> None:
        self._inside: dict[str, int] = {}

    def __enter__(self) -> None:
        own = threading.get_ident()
        # In one step, whatever thread runs next.
        if self._inside.setdefault("thread", own) != own:
            raise CallerError(
                "two threads are in next() of one loader; allowed: one at a time, since a loader has one session with "
                "the daemon. Give each thread a loader of its own"
            )

    def __exit__(self, *_: object) -> None:
        self._inside.pop("thread", None)
