"""Makes batches from the shards of an iterable dataset, in whatever order batches are asked for. Runs in a worker.

Each shard's iterator is made of the program as it was handed over, afresh for each epoch, under get_worker_info() of
DataLoader's worker of that number. Before a batch is taken from it all global generators are seeded for that batch, so
an iterator that goes forward anew, in another worker or after a crash, comes to the same samples. Decision 0023 has the
reasons.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data._utils.worker as torch_worker
from torch.utils.data import IterDataPipe, graph_settings

from prefetchd.plan.shard_plan import ShardPlan
from prefetchd.wire.durations import Durations
from prefetchd.wire.errors import CallerError
from prefetchd.wire.shard_states import ShardState
from prefetchd.wire.stream_spec import Position, StreamSpec
from prefetchd.wire.worker_status import ITERATING
from prefetchd.workers.dataset_states import DatasetStates
from prefetchd.workers.held_values import first_change, plain_values
from prefetchd.workers.program import Program, ProgramSpentError
from prefetchd.workers.seeding import SampleSeeder
from prefetchd.workers.state_values import decode_state, encode_state, has_full_state
from prefetchd.workers.user_code import UserCodeError, user_code
from prefetchd.workers.worker_status_writer import WorkerStatusWriter

KEPT_WALKS = 3
"""How many iterators of one shard are kept at once: the epoch that is consumed, the one that follows, and one more for
whoever goes back."""


class NoSuchBatch(Exception):  # noqa: N818 - it is none
    """The batch's shard has only `batches` batches in the epoch."""

    def __init__(self, batches: int) -> None:
        super().__init__(f"the shard has {batches} batches")
        self.batches = batches


@dataclasses.dataclass(eq=False)
class _Walk:
    """One iterator of a shard, which stands before batch `number` of the shard; `iterator` is None when it has ended
    there. `begins_with` is a state that another iterator had come to; None: it begins with the epoch.

    `ahead` is what begin() took: the iterator's next batch, or the error in its place. `states` reads where it stands;
    `first_state` is the only state that it gives, with its place, where it gives one for the whole epoch."""

    epoch: int
    shard: int
    iterator: Iterator[Any] | None = None
    info: Any = None
    number: int = 0
    has_begun: bool = False
    begins_with: bytes | None = None
    states: DatasetStates | None = None
    first_state: tuple[int, Any] | None = None
    began_as: dict[str, Any] | None = None
    ahead: list[Any] | UserCodeError | None = None


class Shards:
    """Makes samples from the shards of one dataset. The global generators of this process are its own while it works;
    its caller is in as_torch_worker()."""

    def __init__(
        self,
        spec: StreamSpec,
        program: Program,
        plan: ShardPlan,
        seeder: SampleSeeder,
        note: WorkerStatusWriter,
        times: Durations,
    ) -> None:
        """Takes the collaborators; the durations of samples, those of a batch alike, go to `times`."""
        self._program = program
        self._plan = plan
        self._seeder = seeder
        self._note = note
        self._times = times
        self._spec = spec
        # Without batching, which is 0, a batch is one sample.
        self._rows = max(1, spec.batch_size)
        self._drop_last = spec.drop_last
        self._walks: dict[int, list[_Walk]] = {}
        self._starts: dict[int, tuple[int, ShardState]] = {}
        self._latest: _Walk | None = None
        self._looks_for_change = program.reuses_dataset
        self._change = ""
        self._has_warned_of_state = False

    def use_start(self, position: Position, start: ShardState) -> None:
        """Lets the shard of the batch at `position` begin at `start`, in that epoch."""
        shard, _ = self._plan.shard_of(position[1])
        self._starts[shard] = (position[0], start)

    @property
    def state(self) -> bytes | None:
        """The state after the batch that samples() gave last; None when the dataset has none to give, or one that is
        not all there is to say."""
        walk = self._latest
        if walk is None or walk.iterator is None or walk.states is None:
            return None
        found = walk.states.read(walk.iterator, walk.number) if walk.first_state is None else walk.first_state[1]
        if found is None:
            return None
        try:
            return encode_state(found, walk.info.dataset)
        except CallerError as error:
            self._warn_of_state(str(error))
            return None

    @property
    def location(self) -> tuple[int, int, int]:
        """The place of that state: (epoch, shard, number of the batch that comes next)."""
        walk = self._latest
        assert walk is not None
        return walk.epoch, walk.shard, walk.number if walk.first_state is None else walk.first_state[0]

    def begin(self, epoch: int, shard: int, *, anew: bool) -> None:
        """Begins the shard's iterator in the epoch and takes its first batch, which samples() returns later: other
        processes may wait for this shard to begin. Does nothing where an iterator has begun, unless `anew`: then that
        one is dropped. `state` is then that of the whole epoch, where the dataset gives such. Raises
        ProgramSpentError."""
        self._latest = None
        walks = self._walks.setdefault(shard, [])
        if anew:
            walks[:] = [each for each in walks if each.epoch != epoch]
        elif any(each.epoch == epoch for each in walks):
            return
        of_epoch, (start, _) = self._starts.get(shard, (-1, (0, b"")))
        walk = self._walk(epoch, shard, start if of_epoch == epoch else 0)
        self._note.phase(ITERATING)
        try:
            walk.ahead = self._take(walk)
        except NoSuchBatch:
            return
        except UserCodeError as error:
            walk.ahead = error
        # It stands before what was taken ahead.
        walk.number -= 1
        if walk.first_state is not None:
            self._latest = walk

    def samples(self, position: Position) -> list[Any]:
        """Returns the samples of one batch, at least one. What is before it in its shard, and was not taken by this
        process just now, is gone through first. Raises NoSuchBatch, UserCodeError, and ProgramSpentError when only
        another fork can."""
        epoch, step = position
        shard, number = self._plan.shard_of(step)
        walk = self._walk(epoch, shard, number)
        self._note.phase(ITERATING)
        while walk.number < number:
            try:
                self._take(walk)
            except UserCodeError:
                # It was, or will be, told in that batch's place.
                continue
        self._latest = None
        began_ns = time.monotonic_ns()
        samples = self._take(walk)
        self._times.add((time.monotonic_ns() - began_ns) // 1000 // len(samples), len(samples))
        self._latest = walk
        return samples

    def _walk(self, epoch: int, shard: int, number: int) -> _Walk:
        """Returns the walk that is nearest before the batch, or begins one."""
        walks = self._walks.setdefault(shard, [])
        before = [each for each in walks if each.epoch == epoch and each.number <= number]
        walk = max(before, key=lambda each: each.number, default=_Walk(epoch, shard))
        of_epoch, (start, state) = self._starts.get(shard, (-1, (0, b"")))
        is_nearer = walk.number < start or (walk.number == start and not walk.has_begun)
        if of_epoch == epoch and is_nearer and start <= number:
            walk = _Walk(epoch, shard, number=start, begins_with=state)
        if walk in walks:
            walks.remove(walk)
        walks.append(walk)
        del walks[:-KEPT_WALKS]
        return walk

    def _take(self, walk: _Walk) -> list[Any]:
        """Takes the walk's next batch. When that raises UserCodeError, the walk has passed it all the same."""
        if walk.ahead is not None:
            ahead, walk.ahead = walk.ahead, None
            walk.number += 1
            if isinstance(ahead, UserCodeError):
                raise ahead
            return ahead
        step = walk.number * self._plan.shards + walk.shard
        where = f"epoch {walk.epoch}, step {step}, shard {walk.shard}"
        try:
            if not walk.has_begun:
                self._begin(walk, where)
            if walk.iterator is None:
                raise NoSuchBatch(walk.number)
            self._seeder.seed(self._plan.samples_seed(walk.epoch, step))
            torch_worker._worker_info = walk.info if self._program.has_worker_info else None
            with user_code(f"next() of the dataset's iterator, {where}"):
                samples = _next_few(walk.iterator, self._rows)
            self._read_first_state(walk)
        except UserCodeError:
            walk.number += 1
            raise
        # Fewer samples than a batch has: the iterator has ended, and what it holds is let go.
        if len(samples) < self._rows:
            self._look_for_change(walk)
            walk.iterator = walk.info = None
            if not samples or self._drop_last:
                raise NoSuchBatch(walk.number)
        walk.number += 1
        return samples

    def _begin(self, walk: _Walk, where: str) -> None:
        program = self._anew(where)
        walk.has_begun = True
        seed = self._plan.begin_seed(walk.epoch, walk.shard)
        walk.info = torch_worker.WorkerInfo(
            id=walk.shard, num_workers=self._plan.shards, seed=seed, dataset=program.dataset
        )
        torch_worker._worker_info = walk.info if self._program.has_worker_info else None
        self._seeder.seed(seed)
        if isinstance(program.dataset, IterDataPipe):
            with user_code(f"sharding the data pipe, {where}"):
                self._share_out(program.dataset, walk)
        if program.worker_init_fn is not None:
            with user_code(f"worker_init_fn({walk.shard}), {where}"):
                program.worker_init_fn(walk.shard)
        # As torchdata's loader does: the dataset before it is iterated over, the iterator at once.
        of_dataset, of_iterator = self._states(walk, where)
        states = DatasetStates(program.dataset, self._rows, self._plan.shards, self._warn_of_state)
        walk.states = states if has_full_state(program.dataset) else None
        walk.began_as = plain_values(program.dataset) if self._looks_for_change else None
        if of_dataset is not None:
            with user_code(f"load_state_dict() of the dataset, {where}"):
                states.load(of_dataset)
        else:
            states.begin(walk.epoch)
        with user_code(f"iter(dataset), {where}"):
            walk.iterator = iter(program.dataset)
        if of_iterator is not None:
            with user_code(f"load_state_dict() of the dataset's iterator, {where}"):
                iterator: Any = walk.iterator
                iterator.load_state_dict(of_iterator)

    def take_change(self) -> str:
        """Return what a pass has changed in a dataset that all epochs have in common, once; empty if there is nothing
        to report."""
        change, self._change = self._change, ""
        return change

    def _read_first_state(self, walk: _Walk) -> None:
        """Reads the state of a dataset that gives one for the whole epoch, after the iterator's first samples."""
        if walk.states is not None and walk.states.is_of_epoch and walk.first_state is None:
            walk.first_state = walk.number, walk.states.read(walk.iterator, walk.number)

    def _warn_of_state(self, why: str) -> None:
        # It takes longer to come back to a place, and no more.
        if not self._has_warned_of_state:
            self._has_warned_of_state = True
            _warn(f"{why}. Until then whoever goes on there begins with the epoch")

    def _look_for_change(self, walk: _Walk) -> None:
        """Look whether the dataset is, after a pass, what it was before."""
        if walk.began_as is not None and (change := first_change(walk.began_as, plain_values(walk.info.dataset))):
            self._looks_for_change = False
            self._change = change.partition(":")[0]

    def _states(self, walk: _Walk, where: str) -> tuple[Any, Any]:
        """Returns what dataset and iterator are to go on from; None where there is nothing to go on from."""
        if walk.begins_with is None:
            return None, None
        with user_code(f"reading the dataset's state, {where}"):
            found = decode_state(walk.begins_with, walk.info.dataset)
            if not isinstance(found, tuple) or len(found) != 2:
                raise CallerError("a dataset's state in a checkpoint is damaged: it is no pair")
        return found

    def _anew(self, where: str) -> Program:
        if self._program.reuses_dataset:
            # As DataLoader's persistent workers do, and the trainer itself.
            return self._program
        if self._program.is_spent:
            raise ProgramSpentError
        with user_code(f"a copy of the dataset, {where}"):
            return self._program.anew()

    def _share_out(self, pipe: IterDataPipe[Any], walk: _Walk) -> None:
        """Shares the pipe out as DataLoader does: all shards shuffle alike, and each sharding_filter() passes this
        one's share."""
        generator = torch.Generator().manual_seed(self._plan.begin_seed(walk.epoch, 0))
        graph_settings.apply_random_seed(pipe, generator)
        ranks = self._spec.world_size
        graph_settings.apply_sharding(pipe, self._plan.shards * ranks, walk.shard * ranks + self._spec.rank)


def _warn(text: str) -> None:
    # Whose line it was says nothing to who reads it.
    warnings.warn_explicit(text, UserWarning, "prefetchd", 0)


def _next_few(iterator: Iterator[Any], count: int) -> list[Any]:
    """Takes the next `count` samples, or fewer: then the iterator has ended."""
    samples: list[Any] = []
    while len(samples) < count:
        try:
            samples.append(next(iterator))
        except StopIteration:
            break
    return samples
