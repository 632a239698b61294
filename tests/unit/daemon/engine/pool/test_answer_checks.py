"""What cannot be an answer to a worker's tasks is refused before anything is changed by it."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.pool.answer_checks import COUNT_LIMIT, check_answer
from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.stages import WorkerStage
from prefetchd.daemon.engine.stream.stream_state import Host, StreamState, Worker
from prefetchd.ring.policy import Ring
from prefetchd.wire.durations import BOUNDS_S
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import BadSamples, Digested, Filled, FillFailed, Measured, Spent, StoreFailed, Unfit
from prefetchd.wire.stream_spec import StreamSpec

SLOT_BYTES = 100
MEASURES, FILLS, MAKES, DIGESTS = 1, 2, 3, 4
"""The numbers of the worker's tasks, by what each does."""


@pytest.fixture
def worker():
    """A worker with a task of each kind."""
    stream = StreamState(1, StreamSpec("0" * 32, 0, "sequential", 24, 4), [])
    stream.slot_bytes = SLOT_BYTES
    ring = Ring(4)
    ring.reserve(4)
    worker = Worker(7, stream, Host(1, stream=stream), 0, WorkerStage.READY)
    worker.tasks = {
        MEASURES: Piece(Batch((0, 0), 4), 0, 4),
        FILLS: Piece(Batch((0, 1), 4, ring.claim(), under_way=1), 0, 2),
        MAKES: Piece(Batch((0, 2), 4, ring.claim(), whole=True, under_way=1), 0, 4),
        DIGESTS: Piece(Batch((0, 3), 4, ring.claim()), 0, 0, digests=True),
    }
    return worker


@pytest.mark.parametrize(
    "message",
    [
        Filled(((FILLS, SLOT_BYTES, 10, 2), (MAKES, 1, 0, 4))),
        Filled(((FILLS, 1, 1, 1),), (700, len(BOUNDS_S), 1)),
        Measured(MEASURES, SLOT_BYTES),
        Digested(DIGESTS, 1, 10),
        Unfit.deviating(FILLS, "dtype"),
        Unfit.needing(MAKES, 9 * SLOT_BYTES),
        FillFailed(MEASURES, b"error"),
        StoreFailed(MAKES, "full"),
        Spent(FILLS),
        BadSamples(FILLS, ((0, 0, 17),), (b"it is left out",)),
    ],
    ids=repr,
)
def test_these_can_be(worker, message):
    check_answer(worker, message)


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (Filled(((9, 1, 1, 1),)), "was not given"),
        (Filled(((FILLS, 1, 1, 1), (FILLS, 1, 1, 1))), "twice"),
        (Filled(((FILLS, SLOT_BYTES + 1, 1, 1),)), "payload bytes"),
        (Filled(((FILLS, 1, COUNT_LIMIT + 1, 1),)), "duration"),
        (Filled(((FILLS, 1, 1),)), "rows of"),
        (Filled(((MEASURES, 1, 1, 1),)), "kind 0"),
        (Filled(((FILLS, 1, 1, 1),), (700, len(BOUNDS_S) + 1, 1)), "sample_times"),
        (Filled(((FILLS, 1, 1, 1),), (700, 3)), "sample_times"),
        (Measured(FILLS, 1), "kind 1"),
        (Measured(MEASURES, 0), "payload_bytes"),
        (Digested(DIGESTS, 0, 1), "digest"),
        (StoreFailed(FILLS, "full"), "kind 1"),
        (Unfit.needing(FILLS, 1), "does not fill alone"),
        (FillFailed(MEASURES, b""), "error"),
        (BadSamples(FILLS, ()), "number of"),
    ],
    ids=repr,
)
def test_these_cannot(worker, message, why):
    with pytest.raises(ProtocolError, match=why):
        check_answer(worker, message)


def test_who_fills_a_batch_with_others_does_not_give_its_slots_up(worker):
    worker.tasks[MAKES].batch.under_way = 2
    with pytest.raises(ProtocolError, match="does not fill alone"):
        check_answer(worker, Unfit.needing(MAKES, 9 * SLOT_BYTES))
