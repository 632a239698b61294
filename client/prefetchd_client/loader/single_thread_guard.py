"""One thread at a time: who comes while another is inside is told so, and nothing is mixed up."""

from __future__ import annotations

import threading

from prefetchd.wire.errors import CallerError


class SingleThreadGuard:
    """As a context manager, whoever is inside. Raises CallerError for any other thread; never blocks. No lock: a signal
    between two lines would leave that locked, and here the same thread comes in again."""

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
