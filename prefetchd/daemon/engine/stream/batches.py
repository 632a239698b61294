"""Defines batches on their way into the ring, and the pieces that workers fill."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable

from prefetchd.daemon.engine.fairness import NOTHING, Charge
from prefetchd.ring.policy import Grant
from prefetchd.wire.messages import BEGIN, CHECK_FILES, COMPARE, DIGEST, FILL_ROWS, FILL_WHOLE, HELP, MEASURE
from prefetchd.wire.records import record
from prefetchd.wire.stream_spec import Position


@record
class Contents:
    """The contents of a batch by its plan: how many samples, and where a sampler decides the order their `keys` and the
    digest of these, `plan`. With an `error` the sampler raised in its place."""

    rows: int
    keys: bytes = b""
    plan: int = 0
    error: bytes | None = None


@dataclasses.dataclass(slots=True, eq=False)
class Batch:
    """One batch from its claim to its eviction.

    rows            samples in it
    grant           its slots; None while it is measured, waits for room, or has failed
    whole           filled by one task, not by rows
    span            slots that it needs
    pending         rows that no worker has been given yet
    under_way       tasks that workers have
    cancelled       nobody wants it any more: it ends with its last task or lease
    filled          all rows are in; with lookback, also its digest
    recalled        whoever was offered it gives it back, and it is evicted then
    asked_room      the ring was asked to grow so that it fits beside what trainers hold
    urgent          it was recalled for a call of next() that waits, though another cursor awaits it
    written         a holder may have written to it: it is not offered again, unless its digest is what it was
    error           what the trainer gets in its place
    payload_bytes   its length, once all rows are in
    digest          of its payload when all rows were in; 0: none was taken
    keys            what tasks about it need, where a sampler decides the order
    plan            the digest of its keys, or 0 where the order is arithmetic
    plan_verified   the plan is known to want these very keys there
    opened          the files that were read for it, as Filled.opened has them
    check_due       it was made before its epoch began: it is offered once its files are known to be unchanged
    node            the other machine that made it, if it was not compared with one that was made here
    """

    position: Position
    rows: int
    grant: Grant | None = None
    whole: bool = False
    span: int = 1
    pending: list[Piece] = dataclasses.field(default_factory=list)
    under_way: int = 0
    cancelled: bool = False
    filled: bool = False
    asked_room: bool = False
    recalled: bool = False
    urgent: bool = False
    written: bool = False
    error: bytes | None = None
    payload_bytes: int = 0
    digest: int = 0
    keys: bytes = b""
    plan: int = 0
    plan_verified: bool = True
    opened: list[bytes] = dataclasses.field(default_factory=list)
    check_due: bool = False
    node: str = ""

    @property
    def is_whole_task(self) -> bool:
        """True when one task is about all rows: the batch is measured or made whole."""
        return self.whole or self.grant is None

    @property
    def done(self) -> bool:
        """True when it can be offered: all rows are in, or its error is known."""
        return self.filled or self.error is not None


@dataclasses.dataclass(slots=True, eq=False)
class Piece:
    """A fill task: rows [first, end) of a batch; or, without rows, one about all of the batch: its digest, or a check
    of the files that were read for it. Its stream pays `charge` for it. `keeper` is the worker that has made the whole
    batch already, or its first sample, and keeps that in its own memory until there is room. With an `owner_task` it
    loads samples for that task, of another worker; `helpers` are the workers that have done so for this one. With a
    `node` it makes the batch once more, to compare it with what that node has made.

    A piece that `begins` a shard's iterator is no part of a batch that is claimed: `batch` only says where it is. The
    shard has begun in another worker before where it begins `again`. Where it begins `anew` the worker drops the
    iterator that it has."""

    batch: Batch
    first: int
    end: int
    digests: bool = False
    charge: Charge = NOTHING
    keeper: int | None = None
    owner_task: int | None = None
    helpers: tuple[int, ...] = ()
    node: str = ""
    checks: bool = False
    begins: bool = False
    again: bool = False
    anew: bool = False

    @property
    def has_no_rows(self) -> bool:
        """True when the task is about the batch as it is, and makes nothing of it."""
        return self.digests or self.checks

    @property
    def rows(self) -> int:
        return self.end - self.first

    @property
    def kind(self) -> int:
        """The task's kind, as messages.Fill numbers them."""
        if self.begins:
            return BEGIN
        if self.owner_task is not None:
            return HELP
        if self.digests:
            return DIGEST
        if self.checks:
            return CHECK_FILES
        if self.node:
            return COMPARE
        if self.batch.grant is None:
            return MEASURE
        return FILL_WHOLE if self.batch.whole else FILL_ROWS


@dataclasses.dataclass(slots=True, eq=False)
class Lease:
    """One batch in a consumer's hands. An exclusive one was offered without a copy: nobody else may have it."""

    holder: Hashable
    batch: Batch
    grant: Grant
    exclusive: bool


def cut(batch: Batch, pieces: int) -> list[Piece]:
    """Returns the batch's rows in `pieces` pieces that differ by at most one row."""
    pieces = 1 if batch.whole else max(1, min(pieces, batch.rows))
    bounds = [batch.rows * i // pieces for i in range(pieces + 1)]
    return [Piece(batch, first, end) for first, end in itertools.pairwise(bounds)]
