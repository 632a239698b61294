"""PREFETCHD_INLINE=1: the workers' own code in the trainer's process, batch by batch, for pdb and for no daemon.

The one place where the client imports more of prefetchd than its wire: see docs/decisions/0004.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np
import torch

from prefetchd.plan.batch_plan import BatchPlan
from prefetchd.wire.stream_spec import Position, StreamSpec
from prefetchd.workers.fill import Filler, UserCodeError
from prefetchd.workers.program import Program
from prefetchd.workers.sampling import Sampling
from prefetchd_client.cursors import ClientCursor, EndOfEpoch


class InlineStream:
    """A StreamClient without a daemon: the same batches, made when they are asked for."""

    def __init__(self, spec: StreamSpec, parts: dict[str, Any]) -> None:
        self.name = spec.name
        self.is_new = True
        program = Program(**parts)
        self._filler = Filler(spec, program)
        self._sampling = Sampling(spec, program, shared=True) if spec.order == "sampler" else None
        self._next_cursor = 1
        self._yielded = 0
        if parts["worker_init_fn"] is not None:
            parts["worker_init_fn"](0)

    def place_cursor(self, epoch: int, step: int) -> ClientCursor:
        cursor = ClientCursor(self._next_cursor, epoch, step, waiting=True)
        self._next_cursor += 1
        return cursor

    def activate(self, cursor: ClientCursor) -> None:
        cursor.waiting = False

    def close_cursor(self, cursor: ClientCursor) -> None:
        """Nothing was prefetched."""

    def next_batch(self, cursor: ClientCursor, timeout_s: float) -> Any:
        """The next batch, made now. Raises EndOfEpoch and the user's own exceptions."""
        position = (cursor.epoch, cursor.step)
        self._plan(position)
        cursor.step += 1
        # Seeding a sample must not disturb the trainer's own randomness.
        states = torch.get_rng_state(), np.random.get_state(), random.getstate()
        try:
            batch = self._filler.batch(position)
        except UserCodeError as error:
            raise error.__cause__ or error from None
        finally:
            for bad in self._filler.samples.take_bad():
                print(f"prefetchd: {bad.text}", file=sys.stderr)
            torch.set_rng_state(states[0])
            np.random.set_state(states[1])
            random.setstate(states[2])
        self._yielded += 1
        return batch

    def _plan(self, position: Position) -> None:
        epoch, step = position
        plan = self._filler.plan
        if isinstance(plan, BatchPlan):
            if step >= plan.schedule.steps:
                raise EndOfEpoch
            return
        assert self._sampling is not None
        planned = self._sampling.plan(epoch, step + 1)
        if step < len(planned.keys):
            plan.use(position, planned.keys[step])
        elif planned.error is not None and step == len(planned.keys):
            raise planned.error
        else:
            raise EndOfEpoch

    def assume(self, epoch: int) -> None:
        """The sampler is the trainer's own."""

    def ended(self, cursor: ClientCursor) -> None:
        """It has left its generators as they are."""

    def stats(self) -> dict[str, Any]:
        return {"inline": True, "yielded": self._yielded}

    def abandon(self) -> None:
        """A forked child may go on with it: nothing is shared."""

    def close(self) -> None:
        """Nothing to end."""
