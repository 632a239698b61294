"""Checks that a worker's answer can be one to the tasks that it names, before anything is changed by it. Pure. Decision
0100 has the reasons.

Workers run the user's code, which may write to any descriptor of its process, or to its memory. What cannot be true
ends the worker, and nobody else.
"""

from __future__ import annotations

from prefetchd.daemon.engine.stream.batches import Piece
from prefetchd.daemon.engine.stream.stream_state import StreamState, Worker
from prefetchd.wire.durations import BOUNDS_S
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import (
    BEGIN,
    CHECK_FILES,
    COMPARE,
    DIGEST,
    FILL_ROWS,
    FILL_WHOLE,
    HELP,
    MEASURE,
    BadSamples,
    Compared,
    Digested,
    FilesChecked,
    Filled,
    FillFailed,
    Helped,
    Measured,
    Message,
    SamplesWrote,
    ShardBegun,
    ShardEnded,
    Spent,
    StoreFailed,
    Unfit,
    check_rows,
)
from prefetchd.wire.remote_exception import ENCODED_LIMIT_BYTES
from prefetchd.wire.segment_layout import ROW_LAYOUT_LIMIT_BYTES

COUNT_LIMIT = 1 << 48
"""The limit of bytes, of microseconds, and of samples: sums of these fit into 64 bits."""

BAD_SAMPLES_LIMIT = 64
OPENED_LIMIT_BYTES = 1 << 18
PATH_LIMIT = 4096
TEXT_LIMIT_BYTES = 4096

_KINDS: dict[type[Message], tuple[int, ...]] = {
    Filled: (FILL_ROWS, FILL_WHOLE),
    Digested: (DIGEST,),
    FilesChecked: (CHECK_FILES,),
    Compared: (COMPARE,),
    Helped: (HELP,),
    Measured: (MEASURE,),
    Unfit: (FILL_ROWS, FILL_WHOLE, COMPARE),
    FillFailed: (MEASURE, FILL_ROWS, FILL_WHOLE, COMPARE),
    StoreFailed: (FILL_WHOLE,),
    Spent: (MEASURE, FILL_ROWS, FILL_WHOLE, COMPARE, BEGIN),
    ShardBegun: (BEGIN,),
    ShardEnded: (MEASURE, FILL_ROWS, FILL_WHOLE),
    BadSamples: (MEASURE, FILL_ROWS, FILL_WHOLE, COMPARE),
}
"""The kinds of tasks, as messages.Fill numbers them, of which each answer may be said."""


def check_answer(worker: Worker, message: Message) -> None:
    """Raises ProtocolError when the worker was not given such a task, or a number in the answer cannot be."""
    if isinstance(message, Filled):
        check_rows("Filled.tasks", message.tasks, 4)
        tasks = [task for task, *_ in message.tasks]
        if len(set(tasks)) < len(tasks):
            raise ProtocolError(f"worker {worker.number} answers a task twice")
        for task, *counts in message.tasks:
            _check_counts(worker.stream, _piece(worker, message, task), *counts)
        check_times(message.sample_times)
        _check("the number of Filled.opened", len(message.opened), 0, len(tasks))
        for opened in message.opened:
            _check("the bytes of Filled.opened", len(opened), 0, OPENED_LIMIT_BYTES)
    elif isinstance(message, SamplesWrote):
        _check("the length of SamplesWrote.what", len(message.what), 1, PATH_LIMIT)
    elif type(message) in _KINDS:
        _check_one(worker, _piece(worker, message, message.task), message)  # type: ignore[attr-defined]


def check_remote_answer(stream: StreamState, piece: Piece, message: Message) -> None:
    """Raises ProtocolError when a remote worker, which was given `piece`, does not say such a thing, or a number in it
    cannot be."""
    if isinstance(message, Filled):
        check_rows("Filled.tasks", message.tasks, 4)
        _check("the tasks in a remote Filled", len(message.tasks), 1, 1)
        ((_, *counts),) = message.tasks
        _check_counts(stream, piece, *counts)
        check_times(message.sample_times)
        _check("the number of a remote Filled.opened", len(message.opened), 0, 1)
        _check("the bytes of a remote Filled.opened", sum(map(len, message.opened)), 0, OPENED_LIMIT_BYTES)
    elif isinstance(message, Unfit):
        _check("Unfit.payload_bytes", message.payload_bytes, 0, COUNT_LIMIT)
    elif isinstance(message, FillFailed):
        _check("the bytes of FillFailed.error", len(message.error), 1, ENCODED_LIMIT_BYTES)
    elif not isinstance(message, Spent):
        raise ProtocolError(f"a remote worker does not send {type(message).__name__}")


def check_times(times: tuple[int, ...]) -> None:
    """Raises ProtocolError when `times` are not what Durations.take() gives."""
    are_counts = all(0 <= each < COUNT_LIMIT for each in times)
    if times and (len(times) % 2 == 0 or not are_counts or max(times[1::2], default=0) > len(BOUNDS_S)):
        raise ProtocolError(f"Filled.sample_times: {times[:8]!r}")


def _check_one(worker: Worker, piece: Piece, message: Message) -> None:
    if isinstance(message, Digested):
        _check("Digested.digest", message.digest, 1, (1 << 64) - 1)
        _check("Digested.duration_us", message.duration_us, 0, COUNT_LIMIT)
    elif isinstance(message, FilesChecked):
        _check("FilesChecked.duration_us", message.duration_us, 0, COUNT_LIMIT)
        _check("the length of FilesChecked.path", len(message.path), 0, PATH_LIMIT)
    elif isinstance(message, Compared):
        _check("Compared.duration_us", message.duration_us, 0, COUNT_LIMIT)
        _check("Compared.row", message.row, -1, piece.batch.rows)
    elif isinstance(message, Helped):
        _check("the bytes of Helped.opened", len(message.opened), 0, OPENED_LIMIT_BYTES)
        _check("Helped.samples", message.samples, 0, piece.rows)
        _check("Helped.duration_us", message.duration_us, 0, COUNT_LIMIT)
    elif isinstance(message, Measured):
        _check("Measured.payload_bytes", message.payload_bytes, 1, COUNT_LIMIT)
        _check("the bytes of Measured.layout", len(message.layout), 0, ROW_LAYOUT_LIMIT_BYTES)
        _check("the length of Measured.wrote", len(message.wrote), int(message.varies), PATH_LIMIT)
    elif isinstance(message, Unfit):
        _check("Unfit.payload_bytes", message.payload_bytes, 0, COUNT_LIMIT)
        if not message.deviates and piece.kind != COMPARE and (piece.kind != FILL_WHOLE or piece.batch.under_way != 1):
            # Others write to the slots that it would give up.
            raise ProtocolError(f"worker {worker.number} measures a batch that it does not fill alone")
    elif isinstance(message, FillFailed):
        _check("the bytes of FillFailed.error", len(message.error), 1, ENCODED_LIMIT_BYTES)
    elif isinstance(message, BadSamples):
        check_rows("BadSamples.samples", message.samples, 3)
        _check("the number of BadSamples.samples", len(message.samples), 1, BAD_SAMPLES_LIMIT)
        _check("the number of BadSamples.texts", len(message.texts), 0, len(message.samples))
        for text in message.texts:
            _check("the bytes of a text in BadSamples", len(text), 0, TEXT_LIMIT_BYTES)
        for sample in message.samples:
            for number in sample:
                _check("a number in BadSamples", number, -COUNT_LIMIT, 1 << 62)


def _check_counts(stream: StreamState, piece: Piece, payload_bytes: int, duration_us: int, samples: int) -> None:
    grant = piece.batch.grant
    room_bytes = grant.span * stream.slot_bytes if grant is not None else 0
    _check("the payload bytes in Filled", payload_bytes, 0, room_bytes)
    _check("a duration in Filled", duration_us, 0, COUNT_LIMIT)
    _check("a number of samples in Filled", samples, 0, COUNT_LIMIT)


def _piece(worker: Worker, message: Message, task: int) -> Piece:
    piece = worker.tasks.get(task)
    if piece is None:
        raise ProtocolError(f"worker {worker.number} tells of task {task}, which it was not given")
    if piece.kind not in _KINDS[type(message)]:
        raise ProtocolError(f"a worker does not send {type(message).__name__} of a task of kind {piece.kind}")
    return piece


def _check(what: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise ProtocolError(f"{what}: {value}; allowed: {least} to {most}")
