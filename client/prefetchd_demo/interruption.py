"""raise_interrupts turns Ctrl-C and its kin into one exception, which never comes in the middle of cleaning up."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupted(BaseException):
    """Signal `number` asks this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def raise_interrupts() -> None:
    """Has the first of SIGNALS from now on raise Interrupted in the main thread, and no later one. A signal that came
    while it was blocked raises at once."""
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Holds signals back while a bounded clean-up runs."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _interrupt(number: int, _frame: object) -> None:
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    raise Interrupted(number)
