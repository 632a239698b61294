"""Blame finds out who is at fault when workers die: nobody, until a sample has ended its worker twice while nothing
else ran. Pure. Decision 0018 has the reasons.

Deaths are counted for each place where a worker can die: a row (the sample, or one that was tried in its place),
__getitems__, collate_fn, the writing of the batch. From SUSPECTED_AFTER deaths on, what a place is part of runs alone:
no other task is under way in any worker of the daemon. BLAMED_AFTER deaths alone settle it. So a worker that is killed
by chance, or for the memory that others take, blames nobody.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
from collections.abc import Sequence

from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.processes.process_exit import ProcessExit, describe_exit
from prefetchd.wire.remote_exception import RemoteException, encode_exception
from prefetchd.wire.stream_spec import Position
from prefetchd.wire.worker_status import COLLATING, DIGESTING, ITERATING, LOADING, WRITING, WorkerStatus

SUSPECTED_AFTER = 2
BLAMED_AFTER = 2
MOST_DEATHS_A_BATCH = 12
"""The number of deaths on one batch, wherever in it, beyond those that have made suspects: then the batch is given
up."""

MOST_SUSPICIONS = 256
MOST_DEADLY = 4096
PLACES = frozenset((LOADING, ITERATING, COLLATING, WRITING, DIGESTING))
MAY_BE_A_LOCK = (
    "if it waits for a lock that another thread of the trainer held when this was forked, PREFETCHD_START=exec has "
    "workers from an interpreter of its own"
)
Place = tuple[int, int, int]
"""A place where a worker can die: (phase, row, attempt), as its status tells them."""


class Verdict(enum.Enum):
    AGAIN = "again"
    BLAMED = "blamed"
    GIVEN_UP = "given up"


@dataclasses.dataclass(slots=True)
class _Deaths:
    """The deaths at one place: all of them, and those while nothing else ran."""

    all: int = 0
    alone: int = 0


class Blame:
    """Keeps the deaths on one stream's batches, by position: a batch may be dropped and made anew."""

    def __init__(self) -> None:
        self._suspicions: dict[Position, dict[Place | None, _Deaths]] = {}
        self._deadly: dict[Position, list[tuple[int, int]]] = {}

    def died(self, position: Position, note: WorkerStatus, *, alone: bool) -> Verdict:
        """Counts the death of a worker on a task of the batch at `position`, and judges it. `note` is empty when it is
        not about that task."""
        deaths = self._suspicions.setdefault(position, {})
        while len(self._suspicions) > MOST_SUSPICIONS:
            del self._suspicions[next(iter(self._suspicions))]
        place = _place_of(note)
        here = deaths.setdefault(place, _Deaths())
        here.all += 1
        here.alone += alone
        if place is not None and here.alone >= BLAMED_AFTER:
            del deaths[place]
            return Verdict.BLAMED
        suspects = sum(each.all >= SUSPECTED_AFTER for place, each in deaths.items() if place is not None)
        if sum(each.all for each in deaths.values()) >= MOST_DEATHS_A_BATCH + SUSPECTED_AFTER * suspects:
            return Verdict.GIVEN_UP
        return Verdict.AGAIN

    def is_about(self, position: Position) -> bool:
        """True when workers have died of the batch at `position`, or samples in it are known to end them."""
        return position in self._suspicions or position in self._deadly

    def call_deadly(self, position: Position, row: int, attempt: int) -> None:
        """Has workers told, from now on, that this sample ends them."""
        self._deadly.setdefault(position, []).append((row, attempt))
        while len(self._deadly) > MOST_DEADLY:
            del self._deadly[next(iter(self._deadly))]

    def deadly(self, piece: Piece) -> tuple[tuple[int, int], ...]:
        """Returns (row, attempt) of the samples among these rows that end their workers."""
        found = self._deadly.get(piece.batch.position, ()) if self._deadly else ()
        return tuple((row, attempt) for row, attempt in found if row < 0 or piece.first <= row < piece.end)

    def parts(self, piece: Piece) -> list[Piece]:
        """Returns the piece, with each row on which a worker has died cut out into a piece of its own."""
        deaths = self._suspicions.get(piece.batch.position) if self._suspicions else None
        if not deaths or piece.batch.is_whole_task:
            return [piece]
        rows = {place[1] for place in deaths if place is not None and place[0] == LOADING and place[1] >= 0}
        bounds = {piece.first, piece.end}
        for row in rows:
            bounds |= {each for each in (row, row + 1) if piece.first < each < piece.end}
        if len(bounds) <= 2:
            return [piece]
        ends = sorted(bounds)
        return [Piece(piece.batch, first, end) for first, end in itertools.pairwise(ends)]

    def is_suspect(self, piece: Piece) -> bool:
        """True when the piece must run alone."""
        deaths = self._suspicions.get(piece.batch.position) if self._suspicions else None
        if not deaths:
            return False
        return any(
            each.all >= SUSPECTED_AFTER
            and place is not None
            and (piece.batch.is_whole_task or piece.first <= place[1] < piece.end)
            for place, each in deaths.items()
        )

    def forget(self, position: Position) -> None:
        """Forgets the deaths on a batch that is made, or has failed."""
        if self._suspicions:
            self._suspicions.pop(position, None)


def _place_of(note: WorkerStatus) -> Place | None:
    return (note.phase, note.row, note.attempt) if note.phase in PLACES else None


# --- what the trainer is told ---


def what_was_made(note: WorkerStatus, position: Position) -> str:
    """Describes in words what the worker was making."""
    where = f"epoch {position[0]}, step {position[1]}"
    if note.phase == LOADING and note.row >= 0:
        return f"dataset[{note.index}], {where}"
    what = {
        LOADING: "dataset.__getitems__",
        ITERATING: "dataset.__iter__",
        COLLATING: "collate_fn",
        WRITING: "writing the batch",
        DIGESTING: "the digest of the batch",
    }
    return f"{what.get(note.phase, 'the batch')}, {where}"


def blamed_error(note: WorkerStatus, position: Position, how: ProcessExit) -> bytes:
    """Returns the error for a sample, or whatever else of the batch, that has ended its workers."""
    what = what_was_made(note, position)
    text = f"{what}: ends its worker each time, also when nothing else runs; the last one {describe_exit(how)}. "
    if note.phase == LOADING:
        text += "on_error='skip' leaves such samples out, on_error='substitute' replaces them"
    else:
        text += "on_error= is about samples only"
    return encode_exception(RemoteException("WorkerDiedError", text, "", what))


def given_up_error(note: WorkerStatus, position: Position, how: ProcessExit) -> bytes:
    """Returns the error for a batch on which workers die, now here, now there."""
    epoch, step = position
    text = (
        f"worker after worker died on the batch at epoch {epoch}, step {step}, and no single sample is to blame; the "
        f"last one {describe_exit(how)}, at {what_was_made(note, position)}. `prefetchd logs` has them all"
    )
    return encode_exception(RemoteException("WorkerDiedError", text, "", f"epoch {epoch}, step {step}"))


def overdue_error(
    note: WorkerStatus, position: Position, timeout_s: float, frames: Sequence[str] = (), *, may_be_a_lock: bool = False
) -> bytes:
    """Returns the error for a task that took longer than the loader's timeout; its worker was at these `frames`, the
    innermost first."""
    what = what_was_made(note, position)
    at = "".join(f"\n    {frame}" for frame in frames)
    text = f"DataLoader timed out after {timeout_s:g} seconds: {what}: not done within timeout={timeout_s:g} seconds; "
    text += "its worker was killed"
    text += f", at:{at}\nRaise timeout=, or 0 to wait" if at else ". Raise timeout=, or 0 to wait"
    if may_be_a_lock:
        text += f"; {MAY_BE_A_LOCK}"
    return encode_exception(RemoteException("TaskTimeoutError", text, "", what))
