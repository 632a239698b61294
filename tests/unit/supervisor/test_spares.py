"""What hosts have in reserve: whose it is, and when it is killed; its process is a stand-in."""

from __future__ import annotations

import pytest

from prefetchd.supervisor import spares
from prefetchd.supervisor.spares import Spares
from prefetchd.wire.errors import ProtocolError

HOST, OTHER, DEAD_PID = 1, 2, 99


class StandIn:
    """A spare without a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.is_closed = False

    def tell(self, on_message, on_end, on_output) -> None:
        self.ends = on_end

    def close(self) -> None:
        self.is_closed = True


class Bed:
    """The spares, and the pids of those that were buried."""

    def __init__(self) -> None:
        self.buried: list[int] = []
        self.spares = Spares(None, self, nice=0)

    def bury_fork(self, child: StandIn | None) -> None:
        if child is not None:
            self.buried.append(child.pid)


def adopted(watcher, pid, fds, *callbacks, nice):
    if pid == DEAD_PID:
        raise ProtocolError("it is dead")
    return StandIn(pid)


@pytest.fixture
def bed(monkeypatch):
    monkeypatch.setattr(spares, "foreign_child", adopted)
    return Bed()


def test_a_spare_is_taken_once_and_is_its_taker_s(bed):
    assert bed.spares.came(HOST, 10, [])
    assert bed.spares.take(OTHER) is None
    assert bed.spares.take(HOST).pid == 10
    assert bed.spares.take(HOST) is None
    bed.spares.bury(HOST)
    assert bed.buried == []


def test_a_host_has_one_at_most(bed):
    bed.spares.came(HOST, 10, [])
    bed.spares.came(HOST, 11, [])
    assert bed.buried == [10]
    assert bed.spares.take(HOST).pid == 11


def test_one_that_is_dead_when_it_comes_is_none(bed):
    bed.spares.came(HOST, 10, [])
    assert not bed.spares.came(HOST, DEAD_PID, [])
    assert bed.spares.take(HOST) is None
    assert bed.buried == [10], "the former one was not kept for it"


def test_one_that_dies_is_given_up(bed):
    bed.spares.came(HOST, 10, [])
    former = bed.spares._spares[HOST]
    bed.spares.came(HOST, 11, [])
    former.ends(None)
    assert former.is_closed
    later = bed.spares._spares[HOST]
    assert later.pid == 11, "the death was another's"
    later.ends(None)
    assert bed.spares.take(HOST) is None


def test_all_are_killed_in_the_end(bed):
    bed.spares.came(HOST, 10, [])
    bed.spares.came(OTHER, 20, [])
    bed.spares.bury_all()
    assert bed.buried == [10, 20]
    assert bed.spares.take(HOST) is None
