"""A service's end: each thing is given up, whatever becomes of those before it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from prefetchd.daemon.engine.commands import LendRing
from prefetchd.daemon.engine.engine import Limits
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.service import Service
from prefetchd.wire.runtime_paths import runtime_paths


@pytest.fixture
def service(tmp_path):
    loop = Loop()
    yield Service(loop, runtime_paths(tmp_path / "d.sock"), Limits(), generation=1)
    loop.close()


def status_exists(service):
    return os.path.exists("/dev/shm" + service._paths.status_segment)


def test_it_ends_with_nothing_left(service):
    assert status_exists(service)
    service.close()
    assert not status_exists(service)


def test_what_fails_on_the_way_keeps_nothing_else_from_being_given_up(service, monkeypatch):
    given_up = []

    class Resources:
        def __init__(self, name):
            self.name = name

        def close(self):
            given_up.append(self.name)
            raise OSError(self.name)

    def fail():
        raise ArithmeticError("the backend")

    monkeypatch.setattr(service._backend, "close", fail)
    service._rings.resources.update({1: Resources("one"), 2: Resources("two")})
    with pytest.raises(OSError, match="one"):
        service.close()
    assert given_up == ["two", "one"]
    assert not status_exists(service)


def test_a_ring_that_is_to_be_lent_when_its_stream_has_just_been_dropped_is_not(service, monkeypatch):
    """A worker got ready and the daemon was stopped in the same round: the engine has forgotten the stream already, and
    what it decided before is carried out first."""
    lent = []
    monkeypatch.setattr(service._backend, "lend_ring", lambda *what: lent.append(what))
    service._rings.resources[1] = SimpleNamespace(
        ring=SimpleNamespace(is_whole=True, writers_fd=-1), close=lambda: None
    )
    service._executor.execute(LendRing(worker=1, stream=1))
    assert not lent
    service.close()
