"""Streams that the daemon keeps by itself: declared ones, filled whether or not a trainer is there. Pure.

The daemon is one more consumer of such a stream, its keeper, that never takes a batch. When progress is told in other
ways than the socket, the keeper has a cursor that goes where that says. Else a ghost's cursor holds the place where the
next trainer is expected, until one comes.
"""

from __future__ import annotations

from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.ring.cursors import EpochLengths, advance_fill
from prefetchd.wire.stream_spec import Position

PLACEHOLDER_CONSUMER = -1
"""The consumer of cursors that keep a ring filling while no trainer is there."""

GOES_ON, BEGINS = (PLACEHOLDER_CONSUMER, 0), (PLACEHOLDER_CONSUMER, 1)
"""Its cursors: where the next trainer goes on, and where one begins that is run again from the beginning."""

FOLLOWER = 0
"""The keeper's cursor."""


class FiniteEpochs(EpochLengths):
    """The lengths of a plan that ends after `epochs`: those that follow have no steps."""

    def __init__(self, steps: int | None, epochs: int) -> None:
        super().__init__(steps)
        self._epochs = epochs

    def steps(self, epoch: int) -> int | None:
        return super().steps(epoch) if epoch < self._epochs else 0


def keep(stream: StreamState, session: int, position: Position, *, follows_progress: bool) -> None:
    """The daemon's own `session`, which is a consumer of the stream by now, keeps it from here on. Nobody is known to
    stand elsewhere than at `position`."""
    stream.keeper = session
    # Also one that was adopted from a daemon that died.
    stream.offering.shareable = True
    stream.follows_progress = follows_progress
    if stream.spec.epochs:
        stream.window.lengths = FiniteEpochs(stream.schedule.steps, stream.spec.epochs)
    if follows_progress:
        stream.offering.place_cursor((session, FOLLOWER), position, waiting=True)
    elif waits_for_trainers(stream) and not stream.window.cursors:
        stream.offering.place_cursor(GOES_ON, position, waiting=True)


def follow(stream: StreamState, position: Position, now_s: float) -> None:
    """The consumer that the keeper follows stands at `position`. What it has behind itself, and what lies too far ahead
    now, is evicted at once."""
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
        # A jump has left a gap: what is ready behind that is of no use yet.
        window.resume()


def planned(stream: StreamState, position: Position) -> Position | str:
    """The position that a consumer means, or why the plan has none such: an epoch's end is the next one's begin."""
    epoch, step = position
    steps, epochs = stream.schedule.steps, stream.spec.epochs
    if steps is not None and step > steps:
        return f"it says batch {step}; allowed: 0 to {steps}, an epoch's length"
    if steps is not None and step == steps:
        epoch, step = epoch + 1, 0
    if epochs and (epoch, step) > (epochs, 0):
        return f"it says epoch {epoch}, batch {step}; allowed: up to {epochs}, 0, where the plan ends"
    return epoch, step


def is_warm(stream: StreamState) -> bool:
    """True when a kept stream has as many batches ready as its low watermark, or as it will ever have."""
    ring = stream.window.ring
    if ring is None:
        return False
    most = max(1, int(stream.wanted_slots / ring.mean_span))
    if stream.window.ready_ahead() >= min(stream.spec.low_watermark or most, most):
        return True
    busy = any(worker.busy for worker in stream.workers.values())
    # A plan may end, and a ring that could not grow stays small.
    return not busy and ring.reserved >= stream.wanted_slots and not stream.claims.has_work()


def waits_for_trainers(stream: StreamState) -> bool:
    """True while a kept stream has no other consumer, and is not told of progress."""
    if stream.keeper is None or stream.follows_progress or stream.is_awaited:
        return False
    others = (each for each in stream.consumers.values() if each.session != stream.keeper)
    return all(each.departed for each in others)
