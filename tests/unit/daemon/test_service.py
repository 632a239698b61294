"""A service's end: each thing is given up, whatever becomes of those before it."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from prefetchd.daemon.engine.commands import LendRing
from prefetchd.daemon.engine.engine import Limits
from prefetchd.daemon.loop import Loop
from prefetchd.daemon.service import OUTPUT_LINE_BYTES, OUTPUT_LINES_A_SECOND, Service, _OutputRate
from prefetchd.wire.framing import MAX_PACKET_BYTES, encode
from prefetchd.wire.messages import Output
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
    service._resources.update({1: Resources("one"), 2: Resources("two")})
    with pytest.raises(OSError, match="one"):
        service.close()
    assert given_up == ["two", "one"]
    assert not status_exists(service)


def test_a_ring_that_is_to_be_lent_when_its_stream_has_just_been_dropped_is_not(service, monkeypatch):
    """A worker got ready and the daemon was stopped in the same round: the engine has forgotten the stream already, and
    what it decided before is carried out first."""
    lent = []
    monkeypatch.setattr(service._backend, "lend_ring", lambda *what: lent.append(what))
    service._resources[1] = SimpleNamespace(ring=SimpleNamespace(writers_fd=-1), close=lambda: None)
    service._carry_out(LendRing(worker=1, stream=1))
    assert not lent
    service.close()


@pytest.mark.parametrize("line", ["x" * 100_000, "\ufffd" * 2000, "\U0001f682" * 5000, "\udc80" * 5000])
def test_a_second_s_output_fits_into_a_packet(line):
    kept, _ = _OutputRate().admit(1, "\n".join([line] * 100))
    assert len(kept.split("\n")) == OUTPUT_LINES_A_SECOND
    assert len(kept.split("\n")[0].encode()) <= OUTPUT_LINE_BYTES
    assert len(encode(Output(1, kept, 1 << 60))) <= MAX_PACKET_BYTES


def test_lines_left_out_are_told_with_the_next_that_is_not():
    rate = _OutputRate()
    first, told = rate.admit(1, "\n".join(map(str, range(OUTPUT_LINES_A_SECOND + 5))))
    assert first.split("\n") == list(map(str, range(OUTPUT_LINES_A_SECOND)))
    assert told == 5
    assert rate.admit(1, "more\nand more") == ("", 0)
    assert rate.admit(2, "another stream") == ("another stream", 0)
    rate.forget(1)
    assert rate.admit(1, "anew") == ("anew", 0)
