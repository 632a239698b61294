"""Makes a stream's batches one by one in the caller's own process: what PREFETCHD_INLINE=1 gives a trainer."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from prefetchd.plan.batch_plan import BatchPlan
from prefetchd.plan.keyed_plan import KeyedPlan
from prefetchd.ring.shard_lengths import ShardLengths
from prefetchd.wire.shard_states import ShardState, pack
from prefetchd.wire.stream_spec import Position, StreamSpec
from prefetchd.workers.fill import Filler, Measure
from prefetchd.workers.program import Program
from prefetchd.workers.sampling import Sampling
from prefetchd.workers.shards import NoSuchBatch as NoSuchBatch
from prefetchd.workers.torch_worker import as_torch_worker
from prefetchd.workers.user_code import UserCodeError

MOST_BAD = 1000


class EpochEnds(Exception):  # noqa: N818 - it is none
    """The epoch has no batch there."""


class InlineBatches:
    """Makes batches of the trainer's own objects: no copies, and a sampler goes on from where the trainer has left
    it."""

    def __init__(self, spec: StreamSpec, parts: dict[str, Any]) -> None:
        self._spec = spec
        self._program = program = Program(**parts)
        self._lengths = ShardLengths(spec.logical_shards) if spec.order == "iterable" else None
        self._filler = Filler(spec, program)
        self.bad_samples: list[dict[str, Any]] = []
        self._sampling = Sampling(spec, program, shared=True) if spec.order == "sampler" else None
        with self._in_worker():
            self._filler.init_worker(0)

    def batch(self, position: Position) -> Any:
        """Makes the batch at `position` now. Raises EpochEnds, NoSuchBatch (the epoch goes on after that step) and the
        user's own exceptions."""
        self._plan(position)
        try:
            with self._in_worker():
                return self._filler.batch(position)
        except NoSuchBatch as none:
            assert self._lengths is not None
            self._lengths.learn_shard(position[0], position[1] % self._spec.logical_shards, none.batches)
            raise
        finally:
            for bad in self._filler.take_bad():
                print(f"prefetchd: {bad.text}", file=sys.stderr)
                told = {"epoch": position[0], "step": position[1], "row": bad.row, "text": bad.text}
                self.bad_samples = [*self.bad_samples, told][:MOST_BAD]

    def measure(self, position: Position) -> Measure:
        """Measures the batch at `position` as the worker does that comes first. Raises EpochEnds, NoSuchBatch and the
        user's own exceptions."""
        self._plan(position)
        with self._in_worker():
            return self._filler.measure(position, self._filler.plan.row_count(*position))

    @contextlib.contextmanager
    def _in_worker(self) -> Iterator[None]:
        """Calls the user's code in the block as in a worker. Raises what it raises; the trainer's own randomness goes
        on as if nothing had been."""
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        try:
            with as_torch_worker(self._spec, self._program, 0, 1):
                yield
        except UserCodeError as error:
            raise error.__cause__ or error from None
        finally:
            torch.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])

    def began_with(self, epoch: int) -> tuple[int, tuple[bytes, ...]] | None:
        """Return the sampler's epoch and the generators' states before `epoch`, where a sampler decides the order and
        was asked for the epoch lately."""
        return self._sampling.began_with(epoch) if self._sampling is not None else None

    def use_start(self, epoch: int, shard: int, start: ShardState) -> None:
        """Lets the shard begin at `start` in that epoch."""
        self._filler.use_keys((epoch, shard), pack(start))

    def shard_state(self) -> tuple[int, int, int, bytes] | None:
        """Returns what Filler.shard_state does, after the batch that was made last."""
        return self._filler.shard_state()

    def _plan(self, position: Position) -> None:
        epoch, step = position
        plan = self._filler.plan
        if self._lengths is not None:
            if self._lengths.is_end(position):
                raise EpochEnds
            return
        if isinstance(plan, BatchPlan):
            if step >= plan.schedule.steps:
                raise EpochEnds
            return
        assert isinstance(plan, KeyedPlan)
        assert self._sampling is not None
        planned = self._sampling.plan(epoch, step + 1)
        if step < len(planned.keys):
            plan.use(position, planned.keys[step])
        elif planned.error is not None and step == len(planned.keys):
            raise planned.error
        else:
            raise EpochEnds
