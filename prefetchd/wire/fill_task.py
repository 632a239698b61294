"""Names the numbers of a fill task, which travel as a row of messages.Fill."""

from __future__ import annotations

from typing import NamedTuple

from prefetchd.wire.stream_spec import Position


class FillTask(NamedTuple):
    """Rows [first, end) of the batch at (epoch, step), for one worker. `number` names the task in its answer, `kind` is
    as messages.Fill numbers them, and `slot` is the batch's first. `deadly` are (row, attempt) pairs of samples that
    are known to end their workers."""

    number: int
    kind: int
    epoch: int
    step: int
    first: int
    end: int
    slot: int
    deadly: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_row(cls, row: tuple[int, ...]) -> FillTask:
        """Reads a row of messages.Fill."""
        number, kind, epoch, step, first, end, slot, *pairs = row
        return cls(number, kind, epoch, step, first, end, slot, tuple(zip(pairs[::2], pairs[1::2])))

    @property
    def row(self) -> tuple[int, ...]:
        """The task as a row of messages.Fill: the pairs follow the slot, number by number."""
        return (*self[:7], *[number for pair in self.deadly for number in pair])

    @property
    def position(self) -> Position:
        return (self.epoch, self.step)

    @property
    def rows(self) -> int:
        """The number of rows that are to be filled."""
        return self.end - self.first

    @property
    def begins_anew(self) -> bool:
        """True when the worker is to drop the iterator that it has of the shard: it stands in the slot's place."""
        return self.slot == 1

    @property
    def payload_bytes(self) -> int:
        """The length of the batch whose digest is to be taken: it stands in the end row's place."""
        return self.end
