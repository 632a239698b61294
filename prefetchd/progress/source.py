"""The small interface of whatever tells where a consumer stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prefetchd.wire.stream_spec import Position

Moved = Callable[[Position], None]
"""The consumer is at the batch of this position now: all before it is done with."""


class Timers(Protocol):
    """What a source needs of the daemon's loop."""

    def watch(self, fd: int, callback: Callable[[], None]) -> None: ...

    def unwatch(self, fd: int) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None: ...


class Source(Protocol):
    """Tells of one consumer, from its construction to close(). Never blocks for long, nor raises for what it reads."""

    @property
    def position(self) -> Position | None:
        """Where the consumer stands; None until it has said so for the first time."""

    @property
    def unreadable(self) -> int:
        """How often it said what cannot be understood."""

    @property
    def complaint(self) -> str:
        """What is wrong with what it says now, for people; empty when nothing is."""

    def close(self) -> None:
        """Tells nothing any more. Idempotent."""
