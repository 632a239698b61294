"""Holds what the engine knows of a stream's consumers: those with a connection, and those that may come back. Pure."""

from __future__ import annotations

import dataclasses

from prefetchd.daemon.engine.stream.supply import Pace
from prefetchd.wire.records import record
from prefetchd.wire.stream_spec import Position


@dataclasses.dataclass(slots=True, eq=False)
class Consumer:
    """One trainer process on the stream: its session, and the record of the segment that it writes. One that
    `has_program` can hand it over; one that `forks` hands over a fork of itself instead. `refused` says why that fork
    was none for the stream; it is empty when it was not refused."""

    session: int
    pid: int
    record: int
    protocol: int
    has_program: bool
    forks: bool = False
    departed: bool = False
    refused: str = ""
    waited_us: int = 0
    yielded: int = 0
    pace: Pace = dataclasses.field(default_factory=Pace)


@record
class AbsentConsumer:
    """A consumer without a connection whose process lives. `position` is where it stood, None when it had yielded
    nothing. One that has `departed` only holds batches."""

    record: int
    pid: int
    position: Position | None
    departed: bool = False
