"""Fills slots: loads, transforms, collates, and writes. Runs in a worker, one task at a time. The rules:

1. Batches are filled by rows where torch's own collation makes them, the batch size is fixed, and they go into a ring:
   all workers write into one batch. A dataset with `gather_into` copies its rows itself; one with `__getitems__` alone,
   which wants whole batches, is filled whole, as is all else (`Filler.__init__`).
2. The first sample that is not left out decides whether rows will do (`measure`, decision 0009). Only what
   default_collate makes of it gives a layout, and that must be proved (row_collate) and short enough. Else the whole
   batch is made at once.
3. What measuring has made is not made again: the sample of row 0 is kept for its row, a whole batch for the task that
   writes it. A batch that its slots have no room for (decision 0010), or that cannot be stored, is kept likewise. A
   kept batch is given up when more than KEPT_FOR_TASKS others were asked for since.
4. A kept batch is known by its position and its sampler's keys: at one position a sampler may want another one later.
5. Whoever has row 0 writes the payload's meta, after its own rows. That is safe, as a slot is READY only when all tasks
   of its batch are done.
6. A sample that deviates from the layout, or is left out, ends the task with Deviation. Then default_collate decides,
   and the batch is made whole.
7. Errors of the user's code come out as UserCodeError, which says where it happened.
8. Samples of a batch that is made whole may come from other workers (decision 0117).
"""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from torch.utils.data import default_collate, default_convert

from prefetchd.kill_points.kill_points import kill_point
from prefetchd.plan.batch_plan import BatchPlan
from prefetchd.plan.keyed_plan import KeyedPlan
from prefetchd.plan.seeds import worker_seed
from prefetchd.plan.shard_plan import ShardPlan
from prefetchd.wire.durations import Durations
from prefetchd.wire.segment_layout import ROW_LAYOUT_LIMIT_BYTES
from prefetchd.wire.shard_states import Stated, unpack
from prefetchd.wire.slot_layout import RowLayout, decode_row_layout, encode_meta, encode_row_layout
from prefetchd.wire.stream_spec import Position, StreamSpec
from prefetchd.wire.worker_status import COLLATING, LOADING, WRITING
from prefetchd.workers.batch_codec import EncodedBatch, encode_batch
from prefetchd.workers.file_codec import EncodedFile, StoreError, encode_file
from prefetchd.workers.gathering import gather_of, rows_of, runs
from prefetchd.workers.helped_samples import HelpedSamples, help_owner
from prefetchd.workers.own_generators import OwnGenerators
from prefetchd.workers.program import Program
from prefetchd.workers.row_collate import RowPlan, collates_otherwise, plan_rows
from prefetchd.workers.row_leaves import Deviation
from prefetchd.workers.sample_effects import SampleEffects
from prefetchd.workers.samples import NOT_DEADLY, BadSample, Deadly, LeftOut, Samples, without_left_out
from prefetchd.workers.seeding import SampleSeeder
from prefetchd.workers.shards import Shards
from prefetchd.workers.shared_samples import SharedSamples
from prefetchd.workers.user_code import UserCodeError, text_of, user_code
from prefetchd.workers.worker_status_writer import WorkerStatusWriter

_Identity: TypeAlias = tuple[Position, bytes]

KEPT_FOR_TASKS = 8
"""How many batches a kept one outlives. A worker has fewer tasks at once: those that it had when it kept a batch are
done by then."""


@dataclasses.dataclass(frozen=True)
class Measure:
    """The result of measuring: how long a batch is, and its row layout if rows will do; what its samples `wrote` into
    the program, and whether the first one `varies` when it is made again."""

    payload_bytes: int
    layout: bytes
    wrote: str = ""
    varies: bool = False


class Filler:
    """Makes batches of one stream. The global generators of this process are its own while it does."""

    def __init__(
        self,
        spec: StreamSpec,
        program: Program,
        seeder: SampleSeeder | None = None,
        note: WorkerStatusWriter | None = None,
        shared: SharedSamples | None = None,
    ) -> None:
        """`shared` is where other workers may put samples for this one."""
        self.plan = _plan_of(spec)
        self.note = note or WorkerStatusWriter()
        self.times = Durations()
        """The durations of samples, for whoever empties it."""
        self.directory = spec.directory if spec.store == "files" else ""
        self._spec = spec
        self._worker_init_fn = program.worker_init_fn
        self._collate: Callable[[Any], Any] = program.collate_fn or (
            default_collate if spec.batch_size else default_convert
        )
        self._default_collation = program.collate_fn is None or program.collate_fn is default_collate
        self._gathers = bool(getattr(program.dataset, "__getitems__", None)) and spec.batch_size != 0
        # Where a batch sampler decides, no batch tells how many rows the next may have; a file is written in one go.
        self._by_rows = self._default_collation and spec.batch_size > 0 and spec.store != "files"
        self._by_rows = self._by_rows and not collates_otherwise(program.collate_additions or {})
        self._gather = gather_of(program.dataset) if self._by_rows else None
        if self._gather is not None:
            self._gathers = False
        self._by_rows = self._by_rows and not self._gathers
        self.one_by_one = not self._gathers and self._gather is None and spec.batch_size != 0
        """Whether the dataset is asked for each of a batch's samples by itself."""
        self._seeder = seeder or SampleSeeder()
        self._samples: Samples | None = None
        self._shards: Shards | None = None
        if isinstance(self.plan, ShardPlan):
            self._shards = Shards(spec, program, self.plan, self._seeder, self.note, self.times)
            self._by_rows = self._gathers = self.one_by_one = False
        else:
            self._samples = Samples(spec, self.plan, program.dataset, self._seeder, self.note, self.times)
            self._seeder.seek(OwnGenerators({"dataset": program.dataset, "collate_fn": program.collate_fn}))
        self._effects = None
        if not spec.private:
            # Each epoch of an iterable dataset has a copy of its own, unless DataLoader iterates over one object.
            dataset = program.dataset if self._shards is None or program.reuses_dataset else None
            roots = {"dataset": dataset, "collate_fn": program.collate_fn}
            self._effects = SampleEffects(roots, with_shared=not spec.workers)
        self._comes_without_workers = not spec.workers
        self._looks = 0
        self._helped = HelpedSamples(self.note, shared) if shared is not None and self.one_by_one else None
        self._taken: int | None = None
        self._state: bytes | None = None
        self._layout: RowLayout | None = None
        self._rows: RowPlan | None = None
        self._kept = _KeptBatches()
        self._kept_sample: tuple[_Identity, Any] | None = None

    def init_worker(self, worker_index: int) -> None:
        """Calls the user's worker_init_fn, in the worker `worker_index`, before its first task; where there are shards,
        each has its own. Raises UserCodeError."""
        if self._worker_init_fn is not None and self._shards is None:
            self._seeder.seed(worker_seed(self._spec.seed, worker_index, self._spec.rank))
            with user_code(f"worker_init_fn({worker_index})"):
                self._worker_init_fn(worker_index)

    @property
    def layout(self) -> RowLayout | None:
        """The stream's row layout; None where batches are filled whole."""
        return self._layout

    def use_layout(self, layout: bytes) -> None:
        """Takes the stream's row layout, from whoever measured."""
        self._layout = decode_row_layout(layout)

    def use_keys(self, position: Position, keys: bytes) -> None:
        """Takes what the sampler gave for the batch at `position`, or where its shard can begin, before any task about
        it."""
        if isinstance(self.plan, KeyedPlan):
            self.plan.use(position, keys)
        elif self._shards is not None:
            self._shards.use_start(position, unpack(keys))

    def work_of(self, position: Position) -> Position:
        """Return a key that the task of filling the batch at `position` shares with the tasks that prepare it: the
        position, or (epoch, shard) where a shard's iterator makes the batch."""
        if isinstance(self.plan, ShardPlan):
            return position[0], self.plan.shard_of(position[1])[0]
        return position

    def begin_shard(self, position: Position, *, anew: bool) -> None:
        """Begins the iterator of the shard that has the batch at `position`. Raises ProgramSpentError."""
        assert self._shards is not None
        assert isinstance(self.plan, ShardPlan)
        self._shards.begin(position[0], self.plan.shard_of(position[1])[0], anew=anew)
        self._state = self._shards.state

    def measure(self, position: Position, rows: int, deadly: Deadly = NOT_DEADLY) -> Measure:
        """Measures the batch at `position` by rule 2; what it makes is kept by rule 3. Raises UserCodeError."""
        if self._effects is None:
            return self._measure(position, rows, deadly)
        self._effects.begin()
        found = self._measure(position, rows, deadly)
        wrote = self._effects.first_write(puts_back=self._comes_without_workers)
        varies = bool(wrote) and not self._comes_without_workers and self._varies(position, rows, found, deadly)
        return dataclasses.replace(found, wrote=wrote, varies=varies)

    def _varies(self, position: Position, rows: int, found: Measure, deadly: Deadly) -> bool:
        """Return True when what was measured is something else when it is made again. An iterator cannot go back: what
        its dataset or collate_fn keeps is taken to matter."""
        if self._shards is not None:
            return True
        if found.layout:
            return self._by_key.varies(position, deadly)
        first = self._kept.peek(self._identity_of(position))
        return first is not None and _payload(first) != _payload(self._encode(position, rows, deadly))

    def later_write(self) -> str:
        """Return the way to what samples have written into the program since this was asked last; empty if nothing, or
        where DataLoader has workers. Looks now and then, less and less often."""
        if self._shards is not None:
            return self._shards.take_change()
        if self._effects is None or not self._comes_without_workers:
            return ""
        self._looks += 1
        # After 1, 2, 4, 8, ... tasks.
        return self._effects.first_write() if self._looks & (self._looks - 1) == 0 else ""

    def _measure(self, position: Position, rows: int, deadly: Deadly) -> Measure:
        if self._by_rows:
            first = self._by_key.first(position, rows, deadly)
            if first is not None:
                row, sample = first
                if row == 0:
                    self._kept_sample = (self._identity_of(position), sample)
                measured = self._measure_rows(sample)
                if measured is not None:
                    return measured
        encoded = self._encode(position, rows, deadly)
        self._kept.keep(self._identity_of(position), encoded)
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

    def fill_rows(self, position: Position, first: int, end: int, target: Any, deadly: Deadly = NOT_DEADLY) -> int:
        """Writes rows [first, end) to the payload at `target`, a ctypes array, and the meta by rule 5. Returns the
        payload's bytes. Raises Deviation, also when a sample is left out, and UserCodeError."""
        layout = self._layout
        assert layout is not None
        meta = layout.meta_for(self.plan.row_count(*position))
        for begin, stop in self._gathered(position, first, end, layout, target):
            self._write_rows(position, begin, stop, layout, target, deadly)
        if first == 0:
            kill_point("worker.meta.unwritten")
            text = encode_meta(meta)
            target[: len(text)] = text
        return meta.payload_bytes

    def _write_rows(
        self, position: Position, first: int, end: int, layout: RowLayout, target: Any, deadly: Deadly
    ) -> None:
        write = None
        for row, sample in self._rows_of(position, first, end, deadly):
            if type(sample) is LeftOut:
                raise Deviation(f"{sample.error.location} is left out")
            if write is None:
                write = self._row_plan(sample, layout).writer(layout, target)
            write(row, sample)
            kill_point("worker.row.written")

    def _gathered(
        self, position: Position, first: int, end: int, layout: RowLayout, target: Any
    ) -> list[tuple[int, int]]:
        """Copies what the dataset can copy itself. Returns the runs of rows that are left, to be loaded sample by
        sample."""
        if self._gather is None:
            return [(first, end)]
        self.note.phase(LOADING)
        try:
            indices = self._by_key.indices(position, first, end)
            began_ns = time.monotonic_ns()
            missing = self._gather(indices, rows_of(layout, target, first, end))
            if gathered := end - first - len(missing):
                self.times.add((time.monotonic_ns() - began_ns) // 1000 // gathered, gathered)
        except Exception as error:
            raise UserCodeError(f"dataset.gather_into, epoch {position[0]}, step {position[1]}") from error
        return [(first + begin, first + stop) for begin, stop in runs(missing)]

    def fill_whole(
        self, position: Position, rows: int, room: int, target: Callable[[], Any], deadly: Deadly = NOT_DEADLY
    ) -> int:
        """Writes the whole batch to target() if it fits in `room` bytes. Returns the payload's bytes; when that exceeds
        `room`, nothing was written and the batch is kept by rule 3; and so it is when StoreError is raised. Raises
        UserCodeError too."""
        identity = self._identity_of(position)
        encoded = self._kept.take(identity) or self._encode(position, rows, deadly)
        self.note.phase(WRITING)
        if encoded.payload_bytes > room:
            self._kept.keep(identity, encoded)
            return encoded.payload_bytes
        try:
            encoded.write(target())
        except StoreError:
            self._kept.keep(identity, encoded)
            raise
        return encoded.payload_bytes

    def help(self, position: Position, rows: int, shared: SharedSamples, task: int) -> tuple[int, bool]:
        """Loads samples of the batch at `position` for the owner of `shared`, which has `task` in hand (help_owner)."""
        if self._by_rows or not self.one_by_one:
            return 0, False
        samples = self._by_key
        return help_owner(samples, rows, lambda first, end: samples.rows(position, first, end), shared, task)

    def batch(self, position: Position) -> Any:
        """Makes the batch as collate_fn makes it: what a trainer without a daemon gets. Raises UserCodeError."""
        return self._collated(position, self.plan.row_count(*position))

    def take_bad(self) -> list[BadSample]:
        """Returns the samples that were left out or replaced since the last call."""
        return self._samples.take_bad() if self._samples is not None else []

    def shard_state(self) -> tuple[int, int, int, bytes] | None:
        """Returns (epoch, shard, number, state) as ShardCame has them, after the batch that was made last; None where
        there is none."""
        if self._shards is None or self._state is None:
            return None
        return (*self._shards.location, self._state)

    def samples_in(self, rows: int) -> int:
        """Counts the samples of a task of `rows` rows that was done just now: a shard's last batch may have fewer."""
        return min(rows, self._taken) if self._taken is not None else rows

    # --- inside ---

    @property
    def _by_key(self) -> Samples:
        assert self._samples is not None
        return self._samples

    def _identity_of(self, position: Position) -> _Identity:
        """Identifies a batch by rule 4."""
        return position, self.plan.blob if isinstance(self.plan, KeyedPlan) else b""

    def _row_plan(self, sample: Any, layout: RowLayout) -> RowPlan:
        if self._rows is None:
            try:
                plan, _ = plan_rows(sample, self._spec.batch_size)
            except Deviation:
                raise
            except Exception as error:
                raise Deviation(f"default_collate refuses: {text_of(error)}") from None
            if plan.signature != layout.signature:
                raise Deviation("the sample's signature is not the layout's")
            self._rows = plan
        return self._rows

    def _rows_of(self, position: Position, first: int, end: int, deadly: Deadly) -> Iterator[tuple[int, Any]]:
        kept, self._kept_sample = self._kept_sample, None
        if kept is not None and kept[0] == self._identity_of(position) and first == 0:
            return itertools.chain([(0, kept[1])], self._by_key.rows(position, 1, end, deadly))
        return self._by_key.rows(position, first, end, deadly)

    def _load(self, position: Position, rows: int, deadly: Deadly) -> Any:
        """Loads the batch's samples but for those that are left out; at least one. Raises UserCodeError and
        NoSuchBatch."""
        if self._shards is not None:
            self._state = None
            samples = self._shards.samples(position)
            self._taken, self._state = len(samples), self._shards.state
            return samples
        if self._gathers:
            return self._by_key.gathered(position, rows, deadly)
        if self._helped is not None and not deadly:
            loaded = self._helped.load(rows, lambda first, end: self._rows_of(position, first, end, deadly))
            return without_left_out(loaded)
        return without_left_out(self._rows_of(position, 0, rows, deadly))

    def _collated(self, position: Position, rows: int, deadly: Deadly = NOT_DEADLY) -> Any:
        epoch, step = position
        samples = self._load(position, rows, deadly)
        self.note.phase(COLLATING)
        self._seeder.seed(self.plan.batch_seed(epoch, step))
        with user_code(f"collate_fn, epoch {epoch}, step {step}"):
            return self._collate(samples if self._spec.batch_size else samples[0])

    def _encode(self, position: Position, rows: int, deadly: Deadly) -> EncodedBatch | EncodedFile:
        batch = self._collated(position, rows, deadly)
        self.note.phase(WRITING)
        is_file = self._spec.store == "files"
        with user_code(f"{'writing' if is_file else 'pickling'} the batch, epoch {position[0]}, step {position[1]}"):
            if is_file:
                return encode_file(batch, self._spec, position)
            return encode_batch(batch if self._state is None else self._stated(batch, position, self._state))

    def _stated(self, batch: Any, position: Position, state: bytes) -> Stated:
        assert self._shards is not None
        assert isinstance(self.plan, ShardPlan)
        _, _, following = self._shards.location
        _, number = self.plan.shard_of(position[1])
        return Stated(batch, state, None if following == number + 1 else following)


def _plan_of(spec: StreamSpec) -> BatchPlan | KeyedPlan | ShardPlan:
    if spec.order == "iterable":
        return ShardPlan(spec)
    return KeyedPlan(spec) if spec.order == "sampler" else BatchPlan(spec)


def _payload(encoded: EncodedBatch | EncodedFile) -> bytes:
    """Return all bytes of an encoded batch; nothing of one that goes into a file, which has its own header."""
    if not isinstance(encoded, EncodedBatch):
        return b""
    target = (ctypes.c_char * encoded.payload_bytes)()
    encoded.write(target)
    return bytes(target)


class _KeptBatches:
    """The whole batches that are kept by rule 3. They are given up in time: memory is bounded."""

    def __init__(self) -> None:
        self._kept: dict[_Identity, tuple[int, EncodedBatch | EncodedFile]] = {}
        self._asked = 0

    def keep(self, identity: _Identity, encoded: EncodedBatch | EncodedFile) -> None:
        self._kept[identity] = (self._asked, encoded)

    def peek(self, identity: _Identity) -> EncodedBatch | EncodedFile | None:
        """Return the batch `identity`, if there is one, and go on keeping it."""
        return self._kept[identity][1] if identity in self._kept else None

    def take(self, identity: _Identity) -> EncodedBatch | EncodedFile | None:
        """Returns the batch `identity`, if there is one, and keeps it no longer."""
        self._asked += 1
        _, found = self._kept.pop(identity, (0, None))
        forgotten = [at for at, (since, _) in self._kept.items() if self._asked - since > KEPT_FOR_TASKS]
        for at in forgotten:
            del self._kept[at]
        return found
