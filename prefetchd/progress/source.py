"""Defines the small interface of whatever reports where a consumer stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from prefetchd.wire.stream_spec import Position

Moved = Callable[[Position], None]
"""Called when the consumer is at the batch of this position: all before it is done with."""


class Timers(Protocol):
    """The part of the daemon's loop that a source needs."""

    def watch(self, fd: int, callback: Callable[[], None]) -> None: ...

    def unwatch(self, fd: int) -> None: ...

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None: ...


class Source(Protocol):
    """Follows one consumer, from its construction to close(). Never blocks for long, nor raises for what it reads."""

    @property
    def position(self) -> Position | None:
        """The consumer's position; None until it has said so for the first time."""

    @property
    def unreadable(self) -> int:
        """The number of texts that could not be understood."""

    @property
    def complaint(self) -> str:
        """The fault of the present text, for people; empty when there is none."""

    def close(self) -> None:
        """Ends all reports. Idempotent."""
