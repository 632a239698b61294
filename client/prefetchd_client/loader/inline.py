"""InlineStream serves PREFETCHD_INLINE=1: the workers' own code in the trainer's process, batch by batch, for pdb and
for no daemon.

The one place where the client imports more of prefetchd than its wire: see docs/decisions/0004.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prefetchd.wire.messages import BEFORE, EpochStates
from prefetchd.wire.shard_states import ShardState
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.inline_batches import EpochEnds, InlineBatches, NoSuchBatch
from prefetchd_client.session.cursors import ClientCursor, EndOfEpoch
from prefetchd_client.session.run_ahead import RunAhead


def measure_first(spec: StreamSpec, parts: dict[str, Any]) -> tuple[int, bool]:
    """Makes what a worker makes to measure the first batch. Returns the batch's bytes, and whether it is filled row by
    row. Raises EndOfEpoch when there is none, and the user's own exceptions."""
    try:
        found = InlineBatches(spec, parts).measure((0, 0))
    except (EpochEnds, NoSuchBatch):
        raise EndOfEpoch from None
    return found.payload_bytes, bool(found.layout)


class InlineStream:
    """Stands for a StreamClient without a daemon: it has the same batches, made when they are asked for."""

    def __init__(self, spec: StreamSpec, parts: dict[str, Any]) -> None:
        self.name, self.is_named = spec.name, True
        self.fork = None
        self._batches = InlineBatches(spec, parts)
        self._next_cursor = 1
        self._yielded = 0
        self._starts: tuple[int, Mapping[int, ShardState]] = (0, {})

    @property
    def attachment(self) -> None:
        """The ring, of which there is none."""
        return

    @property
    def has_cursors(self) -> bool:
        """False: nothing is kept of a cursor."""
        return False

    def take_first_cursor(self) -> ClientCursor | None:
        """Returns None: nothing is filled ahead."""
        return None

    def place_cursor(self, epoch: int, step: int) -> ClientCursor:
        cursor = ClientCursor(self._next_cursor, epoch, step, True, epoch)
        if step and self._starts[0] == epoch:
            cursor.shard_states |= self._starts[1]
        self._next_cursor += 1
        return cursor

    def activate(self, cursor: ClientCursor) -> None:
        cursor.waiting = False

    begin_anew = activate

    @property
    def ahead(self) -> RunAhead:
        """RunAhead(): no batch is made before it is asked for, whatever is set."""
        return RunAhead()

    def run_ahead(self, ahead: RunAhead) -> None:
        """Do nothing: no batch is made before it is asked for."""

    def close_cursor(self, cursor: ClientCursor) -> None:
        """Does nothing: nothing was prefetched."""

    def next_batch(self, cursor: ClientCursor, timeout_s: float) -> Any:
        """Makes the next batch, and returns it. Raises EndOfEpoch and the user's own exceptions."""
        while True:
            position = (cursor.epoch, cursor.step)
            cursor.step += 1
            try:
                batch = self._batches.batch(position)
            except NoSuchBatch:
                continue
            except EpochEnds:
                cursor.step -= 1
                raise EndOfEpoch from None
            self._yielded += 1
            if cursor.began_with is None and (begun := self._batches.began_with(cursor.epoch)) is not None:
                cursor.began_with = EpochStates(cursor.number, cursor.epoch, BEFORE, *begun)
            if (found := self._batches.shard_state()) is not None:
                _, shard, number, state = found
                cursor.shard_states[shard] = (number, state)
            return batch

    def begin_shards(self, epoch: int, states: Mapping[int, ShardState]) -> None:
        """Has cursors that are placed within the epoch from now on begin with these states, by shard."""
        self._starts = (epoch, states)
        for shard, state in states.items():
            self._batches.use_start(epoch, shard, state)

    def assume(self, epoch: int) -> None:
        """Does nothing: the sampler is the trainer's own."""

    def ran_out(self, cursor: ClientCursor, run_out: Callable[[], object]) -> None:
        """Does nothing: the sampler runs as the batches are made."""

    def ended(self, cursor: ClientCursor) -> None:
        """Does nothing: the sampler has left its generators as they are."""

    def stats(self) -> dict[str, Any]:
        bad = self._batches.bad_samples
        return {"inline": True, "yielded": self._yielded, "bad_sample_count": len(bad), "bad_samples": bad}

    def abandon(self) -> None:
        """Does nothing: a forked child may go on with it, as nothing is shared."""

    def close(self) -> None:
        """Does nothing: there is nothing to end."""
