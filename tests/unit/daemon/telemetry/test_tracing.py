"""Traces that are asked for while others end."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from prefetchd.daemon.engine.engine import Engine, Limits
from prefetchd.daemon.telemetry import tracing as module
from prefetchd.daemon.telemetry.tracing import Tracing
from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.messages import TRACED_FILL, TRACED_REMOTE, Done, Filled
from tests.unit.daemon.engine.pool.test_remote_pool import Bed


class Later:
    """A loop whose timers run when they are told to."""

    def __init__(self) -> None:
        self.timers = []

    def call_later(self, delay_s, callback) -> None:
        self.timers.append(callback)

    def run(self) -> None:
        timers, self.timers = self.timers, []
        for each in timers:
            each()


def session(number):
    sent = []
    return SimpleNamespace(number=number, is_clear=True, send=sent.append, sent=sent)


def test_one_timer_serves_all_that_come_and_go(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    loop = Later()
    tracing = Tracing(loop, Engine(Limits()))
    for number in range(5):
        one = session(number)
        tracing.begin(one, 1.0)
        tracing.ended(one)
    assert len(loop.timers) == 1
    last = session(9)
    tracing.begin(last, 1.0)
    for _ in range(3):
        loop.run()
        assert len(loop.timers) == 1
    now_s[0] = 1.0
    loop.run()
    assert loop.timers == []
    assert isinstance(last.sent[-1], Done)
    tracing.begin(session(10), 1.0)
    assert len(loop.timers) == 1


@pytest.mark.parametrize("for_s", [0.0, -1.0, 1e9, float("nan")])
def test_how_long_a_trace_may_be(for_s):
    with pytest.raises(CallerError, match="allowed: more than 0"):
        Tracing(Later(), Engine(Limits())).begin(session(1), for_s)


def test_what_a_peer_does_not_read_is_bounded_and_what_is_dropped_counted(monkeypatch):
    monkeypatch.setattr(module, "MOST_KEPT_EVENTS", 3)
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    loop, peer = Later(), session(1)
    tracing = Tracing(loop, Engine(Limits()))
    tracing.begin(peer, 1.0)
    peer.is_clear = False
    for number in range(5):
        tracing._add((TRACED_FILL, 7, number, 0, 0, 0, 0, 0, 0, 0), "s")
    now_s[0] = 1.0
    loop.run()
    assert peer.sent == [], "it has yet to read what it was sent before"
    peer.is_clear = True
    loop.run()
    told, last, done = peer.sent
    assert [event[2] for event in told.events] == [0, 1, 2]
    assert (last.dropped, last.events) == (2, ())
    assert isinstance(done, Done)


def test_a_batch_of_another_machine_is_traced_from_when_it_was_given(monkeypatch):
    bed = Bed()
    bed.begins()
    (worker, step), *_ = bed.given()
    ((task, given),) = bed.stream.remote.workers[worker].tasks.items()
    given.given_s = 5.0
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5_300_000_000)
    loop, peer = Later(), session(1)
    tracing = Tracing(loop, bed.world.engine)
    answer = Filled(((task, 100, 250, 4),))
    tracing.remote_tells(worker, answer)
    tracing.begin(peer, 1.0)
    tracing.remote_tells(worker, answer)
    tracing.remote_tells(worker, Filled(((task + 1000, 100, 250, 4),)))
    tracing.remote_tells(worker + 1000, answer)
    tracing.remote_tells(worker, Filled(()))
    loop.run()
    (told,) = peer.sent
    place = (bed.stream.number, worker, 0, step, 250, 0, given.piece.kind)
    assert told.events == ((TRACED_REMOTE, *place, 5_000_000, 300_000),)
    assert told.names == (bed.stream.name.encode(),)


@pytest.mark.parametrize("row", [(1, 2, 3), (1, 2, 3, 4, 5)])
def test_an_answer_whose_rows_are_wrong_is_its_sender_s_fault_while_somebody_traces_too(row):
    bed = Bed()
    bed.begins()
    tracing = Tracing(Later(), bed.world.engine)
    tracing.begin(session(1), 1.0)
    (remote, _), *_ = bed.given()
    with pytest.raises(ProtocolError, match=r"Filled\.tasks"):
        tracing.remote_tells(remote, Filled((row,)))
    with pytest.raises(ProtocolError, match=r"Filled\.tasks"):
        tracing.worker_tells(next(iter(bed.world.engine.pool.workers)), Filled((row,)))
