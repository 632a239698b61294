"""Resting decides which streams fill nothing for now, so that others, or their own trainers, come first. Pure. The
rules, whose reasons are in decisions 0094 (1), 0017 (2), 0106 (3), 0107 (4)
and 0021 (6):

1. A stream that lingers rests while the process that has closed its loader lives on, and anybody consumes another
   stream: a DataLoader's workers would be gone, and these take the CPUs of those that are waited for.
2. A stream of a dead daemon rests until its living consumers have come back, or the time for that is over: they may
   hold what would be filled. Of those that fork, workers may be there before the last of them is.
3. A stream that nobody iterates over gives way to others of the same process: it rests while the consumer of one of
   these is about to wait (supply.py) and its ring is not full, if somebody iterates over that one, or it was made
   before.
4. A stream whose trainer has died rests for RETURNS_WITHIN_S, unless a trainer that goes on from there would have to
   wait: that one may be importing what it needs just now. So it does when that one has come, until it says where it
   begins: what it needs first is not to stand in line behind what was guessed.
5. Kept streams neither rest nor are given way to: they are filled whether or not anybody is there.
6. A stream of a dead daemon whose order only a sampler knows rests, and nothing of it is planned, until a trainer
   comes: what the program says of itself may be another order than the one from which all that is ready was made.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from prefetchd.daemon.engine.stream.keeping import GOES_ON, waits_for_trainers
from prefetchd.daemon.engine.stream.stages import Stage
from prefetchd.daemon.engine.stream.stream_state import StreamState
from prefetchd.daemon.engine.stream.supply import is_about_to_wait

RETURNS_WITHIN_S = 10.0
"""The time for which the CPUs are left to a trainer that is started again (rule 4)."""


def decide_who_rests(streams: Collection[StreamState], now_s: float) -> None:
    """Sets for each stream whether it rests."""
    consumed = any(stream.in_use and not waits_for_trainers(stream) for stream in streams)
    awaited = _awaited(streams, now_s)
    for stream in streams:
        left_behind = consumed and stream.lingers and stream.leaver_lives
        awaits_trainers = stream.awaits_consumers_until_s is not None or stream.awaits_states
        awaits_trainers = awaits_trainers or _is_ahead_of_its_trainer(stream, now_s)
        stream.claims.rests = left_behind or awaits_trainers or _gives_way(stream, awaited)


def waits_for_time(streams: Collection[StreamState]) -> bool:
    """True while decide_who_rests() is to be called again, though nothing has happened (rule 4)."""
    return any(stream.claims.rests and _has_lost_its_trainer(stream) and not stream.awaits_states for stream in streams)


def _is_ahead_of_its_trainer(stream: StreamState, now_s: float) -> bool:
    if not _has_lost_its_trainer(stream) or now_s >= stream.left_s + RETURNS_WITHIN_S:
        return False
    # It goes when somebody places a cursor of his own.
    goes_on = stream.window.cursors.get(GOES_ON)
    return goes_on is not None and not is_about_to_wait(stream.window, [goes_on], 0.0)


def may_be_awaited(stream: StreamState) -> bool:
    """True when the last trainer of the stream has died, and no other one has come yet."""
    return stream.lingers and _has_lost_its_trainer(stream)


def _has_lost_its_trainer(stream: StreamState) -> bool:
    is_kept = stream.keeper is not None
    return bool(stream.left_by) and not stream.left_cleanly and not stream.leaver_lives and not is_kept


def _awaited(streams: Collection[StreamState], now_s: float) -> dict[int, tuple[int, bool]]:
    """Returns, of each process with several streams, (the number of its first stream that needs workers, whether
    somebody iterates over one that does). Nobody else's is looked at: most processes have one."""
    by_pid: dict[int, list[StreamState]] = {}
    for stream in streams:
        if stream.keeper is None and stream.stage is not Stage.AWAITING_PROGRAM:
            for consumer in stream.consumers.values():
                if not consumer.departed:
                    by_pid.setdefault(consumer.pid, []).append(stream)
    found: dict[int, tuple[int, bool]] = {}
    for pid, its in by_pid.items():
        if len(its) > 1 and not all(map(_is_iterated, its)):
            needy = [stream for stream in its if _needs_workers(stream, now_s)]
            if needy:
                found[pid] = min(stream.number for stream in needy), any(map(_is_iterated, needy))
    return found


def _gives_way(stream: StreamState, awaited: Mapping[int, tuple[int, bool]]) -> bool:
    """True when the stream waits for another of its process (rule 3); `awaited` is of _awaited()."""
    if not awaited or stream.keeper is not None or _is_iterated(stream):
        return False
    for consumer in stream.consumers.values():
        first, is_iterated = awaited.get(consumer.pid, (stream.number, False))
        if not consumer.departed and (is_iterated or first < stream.number):
            return True
    return False


def _needs_workers(stream: StreamState, now_s: float) -> bool:
    if stream.paused or stream.failure is not None:
        return False
    # Who takes in a second more than its ring holds is about to wait for ever.
    return stream.is_short(now_s) and not _is_full(stream)


def _is_full(stream: StreamState) -> bool:
    """True when nothing more can be filled for now. One that is measured, or grows, has nothing to claim for a
    moment."""
    ring = stream.window.ring
    if ring is None or ring.reserved < stream.wanted_slots or any(each.busy for each in stream.workers.values()):
        return False
    return not (stream.claims.has_work() and ring.claimable)


def _is_iterated(stream: StreamState) -> bool:
    return any(not cursor.waiting for cursor in stream.window.cursors.values())
