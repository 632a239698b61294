"""Keeping is what the daemon does for declared streams, which it fills whether or not a trainer is there. Pure. The
rules, whose reasons are in decisions 0040 and 0041 (declared streams, progress files) and 0094 (two trainers):

1. The daemon is one more consumer of such a stream, its keeper, that never takes a batch. Anybody may share the stream.
2. When a progress file tells where its consumer is, the keeper has a cursor (FOLLOWER) that is placed where the file
   says. It counts as waiting for ever, as it never asks for a batch. What it has behind itself, and what lies too far
   ahead after a move, is evicted at once.
3. Else trainers tell their progress through the socket. While there is none, a placeholder's cursor holds the place
   where the next one is expected (GOES_ON). It goes when a trainer places its own.
4. A ring that a trainer has left has a second placeholder at the beginning (BEGINS), for a script that is run again.
   Registry.linger() places both.
5. A plan may end after a number of epochs: those that follow have no steps.
"""

from __future__ import annotations

from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.ring.cursors import EpochLengths, advance_fill
from prefetchd.wire.stream_spec import Position

PLACEHOLDER_CONSUMER = -1
"""The consumer of cursors that keep a ring filling while no trainer is there."""

GOES_ON, BEGINS = (PLACEHOLDER_CONSUMER, 0), (PLACEHOLDER_CONSUMER, 1)
"""The placeholder's cursors: where the next trainer goes on, and where one begins that is run again (rules 3 and 4)."""

FOLLOWER = 0
"""The number of the keeper's cursor (rule 2)."""


class FiniteEpochs(EpochLengths):
    """The lengths of a plan that ends after `epochs` (rule 5)."""

    def __init__(self, steps: int | None, epochs: int) -> None:
        super().__init__(steps)
        self._epochs = epochs

    def steps(self, epoch: int) -> int | None:
        return super().steps(epoch) if epoch < self._epochs else 0


def keep(stream: StreamState, session: int, position: Position, *, follows_progress: bool) -> None:
    """Makes the daemon's own `session`, a consumer of the stream by now, its keeper. No consumer is known to be
    elsewhere than at `position`."""
    stream.keeper = session
    # Also of a stream that was adopted from a dead daemon.
    stream.offering.shareable = True
    stream.follows_progress = follows_progress
    if stream.spec.epochs:
        stream.window.lengths = FiniteEpochs(stream.schedule.steps, stream.spec.epochs)
    if follows_progress:
        stream.offering.place_cursor((session, FOLLOWER), position, waiting=True)
    elif waits_for_trainers(stream) and not stream.window.cursors:
        stream.offering.place_cursor(GOES_ON, position, waiting=True)


def follow(stream: StreamState, position: Position, now_s: float) -> None:
    """Moves the keeper's cursor to `position`, where its progress file says that the consumer is (rule 2)."""
    assert stream.keeper is not None
    window = stream.window
    key = (stream.keeper, FOLLOWER)
    former = window.cursors[key].next
    if former < position:
        batches = window.lengths.distance(former, position)
        stream.counters.consumed += batches
        stream.consumers[stream.keeper].pace.took(batches, now_s)
    stream.offering.close_cursor(key)
    stream.offering.place_cursor(key, position, waiting=True)
    for batch in list(window.batches.values()):
        if not window.is_wanted(batch.position):
            window.drop(batch)
    cursor = window.cursors[key]
    if advance_fill(cursor, window.lengths, max(1, stream.spec.low_watermark), window.batches.__contains__):
        # A jump has left a gap: the batches that are ready behind it do not count for the watermarks yet.
        window.resume()


def planned(stream: StreamState, position: Position) -> Position | str:
    """Returns the position that a consumer means, or why the plan has none such. An epoch's end is the next one's
    beginning."""
    epoch, step = position
    steps, epochs = stream.schedule.steps, stream.spec.epochs
    if steps is not None and step > steps:
        return f"it says batch {step}; allowed: 0 to {steps}, an epoch's length"
    if steps is not None and step == steps:
        epoch, step = epoch + 1, 0
    if epochs and (epoch, step) > (epochs, 0):
        return f"it says epoch {epoch}, batch {step}; allowed: up to {epochs}, 0, where the plan ends"
    return epoch, step


def wanted(stream: StreamState) -> int:
    """Returns how many batches of a kept stream are to be ready: its low watermark, or as many as its ring holds. 0 as
    long as there is no ring."""
    ring = stream.window.ring
    if ring is None:
        return 0
    most = max(1, int(stream.wanted_slots / ring.mean_span))
    return min(stream.spec.low_watermark or most, most)


def is_warm(stream: StreamState) -> bool:
    """True when a kept stream has as many batches ready as are wanted, or as it will ever have."""
    ring = stream.window.ring
    if ring is None:
        return False
    if stream.window.ready_ahead() >= wanted(stream):
        return True
    busy = any(worker.busy for worker in stream.workers.values())
    # A plan may end, and a ring that could not grow stays small.
    return not busy and ring.reserved >= stream.wanted_slots and not stream.claims.has_work()


def waits_for_trainers(stream: StreamState) -> bool:
    """True while a kept stream has no progress file, no other consumer, and none that may come back (rule 3)."""
    if stream.keeper is None or stream.follows_progress or stream.is_awaited:
        return False
    others = (each for each in stream.consumers.values() if each.session != stream.keeper)
    return all(each.departed for each in others)
