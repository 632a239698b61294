"""Who shares an environment zygote, when it is given up, and who hears of it; its process is a stand-in."""

from __future__ import annotations

import pytest

from prefetchd.processes.process_exit import KILLED, ProcessExit
from prefetchd.supervisor import environment_zygotes
from prefetchd.supervisor.environment_zygotes import KEEP_ENVIRONMENT_S, EnvironmentZygotes


class StandIn:
    """An environment zygote without a process."""

    refusal = None
    pid = 7

    def __init__(self, watcher, environment, on_message, on_end, on_output, *, nice):
        self.hosts: set[int] = set()
        self.unused_since_s: float | None = None
        self.child = self
        self.ends, self.prints = on_end, on_output
        self.is_closed = False

    def reap(self) -> ProcessExit:
        return KILLED

    def close(self) -> None:
        self.is_closed = True


class Bed:
    """Environment zygotes; `told` is what they report, and `buried` who was killed."""

    def __init__(self) -> None:
        self.told: list = []
        self.buried: list = []
        self.time_s = 0.0
        self.zygotes = EnvironmentZygotes(self, self, self, nice=0)

    def now_s(self) -> float:
        return self.time_s

    def bury(self, child, afterwards) -> None:
        self.buried.append(child)

    def zygote_ended(self, *event) -> None:
        self.told.append(event)

    zygote_printed = zygote_ended


@pytest.fixture
def bed(monkeypatch):
    monkeypatch.setattr(environment_zygotes, "EnvironmentZygote", StandIn)
    return Bed()


def test_hosts_of_one_environment_share_a_zygote(bed):
    zygote = bed.zygotes.of(b"a", None)
    assert bed.zygotes.of(b"a", None) is zygote
    assert bed.zygotes.of(b"b", None) is not zygote
    assert bed.zygotes.get(b"a") is zygote
    assert bed.zygotes.get(None) is None, "a trainer's fork has none"


def test_one_is_given_up_when_its_last_host_has_been_gone_for_long(bed):
    zygote = bed.zygotes.of(b"a", None)
    for host in (1, 2):
        bed.zygotes.enter(host, b"a")
    bed.zygotes.leave(1, b"a")
    bed.time_s = 2 * KEEP_ENVIRONMENT_S
    bed.zygotes.retire_idle(bed.time_s)
    assert bed.zygotes.get(b"a") is zygote
    bed.zygotes.leave(2, b"a")
    bed.zygotes.retire_idle(bed.time_s + KEEP_ENVIRONMENT_S - 1)
    assert bed.zygotes.get(b"a") is zygote, "another trainer may come"
    bed.zygotes.retire_idle(bed.time_s + KEEP_ENVIRONMENT_S)
    assert bed.zygotes.get(b"a") is None
    assert bed.buried == [zygote]


def test_one_whose_first_host_could_not_be_started_is_given_up_too(bed):
    bed.zygotes.of(b"a", None)
    bed.zygotes.retire_idle(KEEP_ENVIRONMENT_S)
    assert bed.zygotes.get(b"a") is None


def test_its_hosts_hear_of_its_end_and_another_is_started_next_time(bed):
    zygote = bed.zygotes.of(b"a", None)
    bed.zygotes.enter(1, b"a")
    zygote.ends(None)
    assert bed.told == [(1, KILLED)]
    assert zygote.is_closed
    assert bed.zygotes.of(b"a", None) is not zygote


def test_what_it_prints_goes_to_one_of_its_hosts(bed):
    zygote = bed.zygotes.of(b"a", None)
    zygote.prints(["to nobody"], 0)
    for host in (5, 3):
        bed.zygotes.enter(host, b"a")
    zygote.prints(["imported"], 2)
    assert bed.told == [(3, ["imported"], 2)]
