"""Filling: load, transform, collate, into the slot. Runs in a worker, one task at a time.

Errors of the user's code come out as UserCodeError, which says where it happened.
"""

from __future__ import annotations

import dataclasses
import io
import traceback
from collections.abc import Callable
from typing import Any

from torch.utils.data import default_collate, default_convert

from prefetchd.plan.batch_plan import BatchPlan
from prefetchd.wire.messages import LoadFailed
from prefetchd.wire.remote_exception import PICKLE_LIMIT_BYTES, RemoteException, encode_exception
from prefetchd.wire.segment_layout import ROW_LAYOUT_LIMIT_BYTES
from prefetchd.wire.slot_layout import RowLayout, decode_row_layout, encode_meta, encode_row_layout
from prefetchd.wire.stream_spec import Position, StreamSpec
from prefetchd.workers.batch_codec import EncodedBatch, MainAwarePickler, encode_batch
from prefetchd.workers.program import Program, load_program
from prefetchd.workers.row_collate import Deviation, RowPlan, plan_rows
from prefetchd.workers.seeding import SampleSeeder

MESSAGE_LIMIT_CHARACTERS = 2000
KEPT_FOR_TASKS = 8
"""A worker has fewer tasks at once: those that it had when it kept a batch are done by then."""


class UserCodeError(Exception):
    """The user's code raised; `place` says where, `__cause__` is what it raised."""

    def __init__(self, place: str) -> None:
        super().__init__(place)
        self.place = place


@dataclasses.dataclass(frozen=True)
class Measure:
    """What the first look at a stream tells: how long a batch is, and its row layout if rows will do."""

    payload_bytes: int
    layout: bytes


class Filler:
    """Makes batches of one stream. The global generators of this process are its own while it does."""

    def __init__(self, spec: StreamSpec, program: Program, seeder: SampleSeeder | None = None) -> None:
        self.plan = BatchPlan(spec)
        self._spec = spec
        self._dataset = program.dataset
        self._worker_init_fn = program.worker_init_fn
        self._collate: Callable[[Any], Any] = program.collate_fn or (
            default_collate if spec.batch_size else default_convert
        )
        self._default_collation = program.collate_fn is None or program.collate_fn is default_collate
        self._gathers = bool(getattr(program.dataset, "__getitems__", None)) and spec.batch_size > 0
        self._seeder = seeder or SampleSeeder()
        self._layout: RowLayout | None = None
        self._rows: RowPlan | None = None
        self._kept = _KeptBatches()
        self._kept_sample: tuple[Position, Any] | None = None

    def init_worker(self, place: int) -> None:
        """The user's worker_init_fn, in the worker at `place`, before its first task. Raises UserCodeError."""
        if self._worker_init_fn is not None:
            with user_code(f"worker_init_fn({place})"):
                self._worker_init_fn(place)

    def use_layout(self, layout: bytes) -> None:
        """The stream's row layout, from whoever measured."""
        self._layout = decode_row_layout(layout)

    def measure(self, position: Position, rows: int) -> Measure:
        """Looks at the batch at `position`: by its first sample if rows may do, else by the whole batch, which is
        kept for the task that writes it. Raises UserCodeError."""
        if self._default_collation and not self._gathers and self._spec.batch_size:
            sample = self._load(position, 0, 1)[0]
            self._kept_sample = (position, sample)
            measured = self._measure_rows(sample)
            if measured is not None:
                return measured
        encoded = self._encode(position, rows)
        self._kept.keep(position, encoded)
        return Measure(encoded.payload_bytes, b"")

    def _measure_rows(self, sample: Any) -> Measure | None:
        try:
            plan, layout = plan_rows(sample, self._spec.batch_size)
        except Exception:
            # Deviation, or default_collate refuses: the whole batch will tell the user why.
            return None
        text = encode_row_layout(layout)
        if len(text) > ROW_LAYOUT_LIMIT_BYTES:
            return None
        self._rows = plan
        return Measure(layout.meta.payload_bytes, text)

    def fill_rows(self, position: Position, first: int, end: int, target: Any) -> int:
        """Writes rows [first, end) to the payload at `target`, a ctypes array; whoever has row 0 writes the meta.
        Returns the payload's bytes. Raises Deviation and UserCodeError."""
        layout = self._layout
        assert layout is not None
        meta = layout.meta_for(self.plan.schedule.rows(position[1]))
        writers = None
        for row, sample in zip(range(first, end), self._samples(position, first, end)):
            plan = self._row_plan(sample, layout)
            if writers is None:
                writers = plan.writers(layout, target)
            for write, leaf in zip(writers, plan.take(sample)):
                write(row, leaf)
        if first == 0:
            text = encode_meta(meta)
            target[: len(text)] = text
        return meta.payload_bytes

    def fill_whole(self, position: Position, rows: int, room: int, target: Callable[[], Any]) -> int:
        """Writes the whole batch to target() if it fits in `room` bytes. Returns the payload's bytes; when that
        exceeds `room`, nothing was written and the batch is kept for the next try. Raises UserCodeError."""
        encoded = self._kept.take(position) or self._encode(position, rows)
        if encoded.payload_bytes > room:
            self._kept.keep(position, encoded)
        else:
            encoded.write(target())
        return encoded.payload_bytes

    def batch(self, position: Position) -> Any:
        """The batch as collate_fn made it: what a trainer without a daemon gets. Raises UserCodeError."""
        return self._collated(position, self.plan.schedule.rows(position[1]))

    # --- inside ---

    def _row_plan(self, sample: Any, layout: RowLayout) -> RowPlan:
        if self._rows is None:
            try:
                plan, _ = plan_rows(sample, self._spec.batch_size)
            except Deviation:
                raise
            except Exception as error:
                raise Deviation(f"default_collate refuses: {_text_of(error)}") from None
            if plan.signature != layout.signature:
                raise Deviation("the sample's signature is not the layout's")
            self._rows = plan
        return self._rows

    def _samples(self, position: Position, first: int, end: int) -> Any:
        if self._kept_sample is not None and self._kept_sample[0] == position and first == 0:
            yield self._kept_sample[1]
            first = 1
        self._kept_sample = None
        epoch, step = position
        planned = self.plan.rows(epoch, step, first, end)
        run, dataset = self._seeder.run, self._dataset

        def get(index: int) -> Any:
            return dataset[index]

        for index, seed in zip(planned.indices.tolist(), planned.seeds.tolist()):
            try:
                sample = run(seed, get, index)
            except Exception as error:
                raise UserCodeError(f"dataset[{index}], epoch {epoch}, step {step}") from error
            yield sample

    def _load(self, position: Position, first: int, end: int) -> list[Any]:
        return list(self._samples(position, first, end))

    def _collated(self, position: Position, rows: int) -> Any:
        epoch, step = position
        if self._gathers:
            planned = self.plan.rows(epoch, step, 0, rows)
            self._seeder.seed(self.plan.batch_seed(epoch, step))
            with user_code(f"dataset.__getitems__, epoch {epoch}, step {step}"):
                samples = self._dataset.__getitems__(planned.indices.tolist())
        else:
            samples = self._load(position, 0, rows)
        self._seeder.seed(self.plan.batch_seed(epoch, step))
        with user_code(f"collate_fn, epoch {epoch}, step {step}"):
            return self._collate(samples if self._spec.batch_size else samples[0])

    def _encode(self, position: Position, rows: int) -> EncodedBatch:
        batch = self._collated(position, rows)
        with user_code(f"pickling the batch, epoch {position[0]}, step {position[1]}"):
            return encode_batch(batch)


class _KeptBatches:
    """Whole batches that wait for room. What nobody asks for any more is let go: memory is bounded."""

    def __init__(self) -> None:
        self._kept: dict[Position, tuple[int, EncodedBatch]] = {}
        self._asked = 0

    def keep(self, position: Position, encoded: EncodedBatch) -> None:
        self._kept[position] = (self._asked, encoded)

    def take(self, position: Position) -> EncodedBatch | None:
        """The batch at `position`, kept no longer."""
        self._asked += 1
        _, found = self._kept.pop(position, (0, None))
        forgotten = [at for at, (since, _) in self._kept.items() if self._asked - since > KEPT_FOR_TASKS]
        for at in forgotten:
            del self._kept[at]
        return found


class user_code:  # noqa: N801 - reads as a statement
    """Turns what the block raises into UserCodeError at `place`."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            raise UserCodeError(self._place) from error


def remote_exception(error: UserCodeError) -> RemoteException:
    """The user's exception as it travels to the trainer."""
    cause = error.__cause__
    assert cause is not None
    return RemoteException(
        type_name=type(cause).__qualname__,
        message=_text_of(cause),
        traceback=_traceback_of(cause),
        place=error.place,
        pickled=_pickled_exception(cause),
    )


def load_program_or_fail(fd: int) -> Program | LoadFailed:
    """The program behind `fd`, or what is to be said of its failure: importing the user's modules may even exit."""
    try:
        return load_program(fd)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failure = UserCodeError("loading the program")
        failure.__cause__ = error
        return load_failed(failure)


def load_failed(error: UserCodeError) -> LoadFailed:
    """What a zygote or worker says when the user's code did not even let it begin."""
    remote = remote_exception(error)
    message = f"{remote.place}: {remote.type_name}: {remote.message}"
    return LoadFailed(message[:MESSAGE_LIMIT_CHARACTERS], encode_exception(remote))


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "an exception whose text cannot be had"


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        # Its notes, say, are a property that raises: where it came from can still be told.
        return "".join(traceback.format_tb(error.__traceback__))


def _pickled_exception(error: BaseException) -> bytes:
    target = io.BytesIO()
    try:
        # OSError keeps file names outside of `args`. A __reduce__ of the class's own is not asked: what it gives is for
        # the constructor, which the trainer does not call.
        arguments = OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args
        MainAwarePickler(target, 5).dump((type(error), arguments, error.__dict__))
    except Exception:
        return b""
    pickled = target.getvalue()
    return pickled if len(pickled) <= PICKLE_LIMIT_BYTES else b""
