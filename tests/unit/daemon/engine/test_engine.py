"""The engine decides after every event: no method that is one can be forgotten."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.engine import Engine, Limits

QUERIES = {
    "has_news",
    "held",
    "host_of",
    "now_s",
    "is_busy",
    "is_ring_tuned",
    "is_tuned",
    "stream_of",
    "stream_of_worker",
    "undecided_until_s",
}
CARRIED_OUT = {"publications", "take_commands"}
TIME = {"decide_overdue", "tick"}
"""What is no event: everything else that is public is one."""


def is_event(method) -> bool:
    return hasattr(method, "__wrapped__")


def test_every_public_method_is_an_event_or_is_known_not_to_be_one():
    public = {name: each for name, each in vars(Engine).items() if not name.startswith("_")}
    others = {name for name, each in public.items() if not is_event(each)}
    assert others == QUERIES | CARRIED_OUT | TIME


@pytest.fixture
def decided(monkeypatch):
    """How often the engine has decided."""
    rounds = []
    monkeypatch.setattr(Engine, "_decide", lambda engine: rounds.append(1))
    return rounds


def test_it_decides_once_for_all_events_since_the_last_time(decided):
    engine = Engine(Limits())
    engine.leaver_ended(1)
    engine.spare_ready(2)
    engine.take_commands()
    engine.take_commands()
    assert len(decided) == 1


def test_an_event_that_raises_has_changed_nothing_and_nothing_is_decided(decided):
    engine = Engine(Limits())
    with pytest.raises(Exception, match="no stream 'gone'"):
        engine.pause("gone")
    engine.take_commands()
    assert decided == []


def test_time_that_makes_nothing_due_costs_no_decision(decided):
    engine = Engine(Limits())
    engine.tick(1.0)
    engine.decide_overdue(1.0)
    engine.take_commands()
    assert decided == []


def test_nothing_is_decided_once_the_daemon_stops(decided):
    engine = Engine(Limits())
    engine.stop("it was asked to")
    engine.leaver_ended(1)
    engine.take_commands()
    assert decided == []
