"""Bridges as the daemon holds them, with real processes that speak a bridge's part: what they say arrives in order, and
their end once, last, with a reason."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from prefetchd.daemon.process.loop import Loop
from prefetchd.supervisor import bridges as module
from prefetchd.supervisor.bridges import Bridges
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import FILL_WHOLE, Filled, FillRemote, Revoke, StartRemote, StopRemote
from prefetchd.wire.process_environment import current_environment
from prefetchd.wire.stream_spec import StreamSpec
from tests.contract import programs
from tests.scenario.datasets import Made
from tests.scenario.waiting import is_gone, open_fds
from tests.unit.remote.programs import program_of
from tests.unit.supervisor.stand_in_bridge import TRANSFER_US, bootstrap

DEADLINE_S = 40.0
STREAM, BRIDGE = 3, 11
SPEC = StreamSpec("0" * 32, 7, "sequential", 24, 4)


class Stage:
    """Bridges on a real loop; what they tell is written down: (event, arguments..., option of that name)."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.told: list[tuple[Any, ...]] = []
        self.in_call = False
        self.refuses: set[str] = set()
        self.bridges = Bridges(self.loop, self, "head:6379", insecure=False)
        self._until: Callable[[], Any] = lambda: True
        self.loop.after_each(self._look)

    def __getattr__(self, event: str) -> Callable[..., None]:
        if not event.startswith(("bridge_", "remote_")):
            raise AttributeError(event)

        def write_down(*arguments: Any, **options: Any) -> None:
            assert not self.in_call, f"{event} was told from within a call"
            self.told.append((event, *arguments, *options.values()))
            if event in self.refuses:
                raise ProtocolError("that is no answer")

        return write_down

    def open(self, bridge: int = BRIDGE, own: dict[bytes, bytes] | None = None, **environment: Any) -> None:
        fd = program_of(Made(programs.numbered), environment=dataclasses.replace(current_environment(), **environment))
        try:
            self.call("open", STREAM, bridge, fd, SPEC, own or {})
        finally:
            # No hold of it is kept.
            os.close(fd)

    def call(self, name: str, *arguments: Any) -> None:
        self.in_call = True
        try:
            getattr(self.bridges, name)(*arguments)
        finally:
            self.in_call = False

    def until(self, holds: Callable[[], Any]) -> Any:
        """Runs the loop until holds() is true, and gives what it is."""
        deadline_s = time.monotonic() + DEADLINE_S
        self._until = lambda: holds() or time.monotonic() > deadline_s
        if not holds():
            self.loop.run()
        found = holds()
        assert found, f"not within {DEADLINE_S} s; told: {self.told}"
        return found

    def event(self, *expected: Any) -> tuple[Any, ...]:
        return self.until(lambda: next((each for each in self.told if each[: len(expected)] == expected), None))

    def _look(self) -> None:
        if self._until():
            self.loop.stop()

    def a_while_later(self) -> None:
        """Another bridge has begun and ended meanwhile."""
        self.open(99, executable=b"/no/such/python")
        self.event("bridge_ended", 99)
        self.told = [each for each in self.told if each[1] != 99]


@pytest.fixture
def stage():
    made = Stage()
    yield made
    made.bridges.close()
    made.loop.close()


@pytest.fixture
def act(monkeypatch):
    """Says what bridges do from now on."""

    def does(name: str) -> None:
        monkeypatch.setattr(module, "BRIDGE_BOOTSTRAP", bootstrap(name))

    return does


@pytest.fixture
def served(stage, act):
    """A bridge that has reached its cluster, and answers everything."""
    act("serve")
    stage.open()
    stage.event("bridge_ready", BRIDGE)
    return stage


# --- what it is told, and tells ---


def test_a_bridge_is_ready_when_it_says_so(served):
    assert served.told == [("bridge_ready", BRIDGE)]
    assert served.bridges.own_pids == {served.bridges.pid(BRIDGE)}
    assert not is_gone(served.bridges.pid(BRIDGE))


def test_workers_come_with_their_node_and_their_processor_in_few_words(served):
    served.call("tell", BRIDGE, StartRemote((5, 6)))
    _, _, node, processor = served.event("remote_ready", 6)
    assert node.startswith("node of 6")
    assert processor.startswith("a processor")
    assert (len(node), len(processor)) == (200, 200)
    assert [each[1] for each in served.told if each[0] == "remote_ready"] == [5, 6]


def test_a_ring_is_lent_as_it_is(served):
    fd = os.memfd_create("a-ring")
    os.truncate(fd, 12345)
    served.call("lend_ring", BRIDGE, fd, b"the layout")
    os.close(fd)
    assert served.event("remote_ready", 0)[2:] == ("a ring of 12345", "the layout")


def test_an_answer_is_told_as_the_message_that_it_carries(served):
    served.call("tell", BRIDGE, FillRemote(5, ((8, FILL_WHOLE, 0, 1, 0, 4, 2), (9, FILL_WHOLE, 0, 2, 0, 4, 3))))
    served.event("remote_message", 5, Filled(((9, 100, 10, 4),)), TRANSFER_US)
    assert ("remote_message", 5, Filled(((8, 100, 10, 4),)), TRANSFER_US) in served.told


def test_what_was_taken_back_is_told_with_the_bridge_and_what_is_late_with_the_worker(served):
    served.call("tell", BRIDGE, Revoke(8))
    served.event("remote_late", 7, 8)
    assert ("remote_revoked", BRIDGE, 8) in served.told


def test_the_end_of_a_worker_and_what_it_has_printed_are_told(served):
    served.call("tell", BRIDGE, StopRemote(5))
    served.event("remote_ended", 5, "it was stopped", True)
    assert ("remote_printed", STREAM, 5, ["printed \ufffd there", "and more"], 3) in served.told


def test_what_a_bridge_itself_prints_is_worker_0_s(stage, act):
    act("print")
    stage.open()
    stage.event("bridge_ready", BRIDGE)

    def lines() -> list[str]:
        return [line for each in stage.told if each[:3] == ("remote_printed", STREAM, 0) for line in each[3]]

    stage.until(lambda: {"on its way", "to stderr"} <= set(lines()))


def test_a_bridge_has_the_daemon_s_way_to_the_cluster_and_the_trainer_s_environment(stage, act):
    act("show variables")
    trainers = {b"RAY_ADDRESS": b"of the trainer", b"OF_THE_TRAINER": b"1", b"CUDA_VISIBLE_DEVICES": b"0,1"}
    own = {b"RAY_AUTH_MODE": b"token", b"OF_THE_DAEMON": b"secret"}
    stage.open(own=own, variables={**os.environb, **trainers})
    _, _, told, _ = stage.event("bridge_ended", BRIDGE)
    assert json.loads(told) == {
        "RAY_AUTH_MODE": "token",
        "RAY_ADDRESS": None,
        "OF_THE_DAEMON": None,
        "OF_THE_TRAINER": None,
        "CUDA_VISIBLE_DEVICES": "",
    }


def test_what_is_said_to_one_that_is_not_there_is_lost(stage):
    stage.call("tell", BRIDGE, Revoke(8))
    stage.call("drop", BRIDGE)
    assert stage.bridges.pid(BRIDGE) == 0
    assert stage.bridges.own_pids == set()


# --- its end ---


def test_a_bridge_that_finds_no_cluster_says_why_and_its_end_is_told_once(stage, act):
    act("has no cluster")
    stage.open()
    assert stage.event("bridge_ended", BRIDGE) == ("bridge_ended", BRIDGE, "nobody answers there", True)
    assert stage.bridges.own_pids == set()
    stage.a_while_later()
    assert [each[0] for each in stage.told] == ["bridge_ended"]


def test_a_bridge_that_ends_without_a_word_is_explained_by_how_it_ended(stage, act):
    act("exit")
    stage.open()
    reason = "its bridge to the cluster exited with 3"
    assert stage.event("bridge_ended", BRIDGE) == ("bridge_ended", BRIDGE, reason, False)


def test_one_that_is_killed_is_told_of_as_killed(served):
    os.kill(served.bridges.pid(BRIDGE), 9)
    _, _, reason, is_final = served.event("bridge_ended", BRIDGE)
    assert reason == "its bridge to the cluster was killed by SIGKILL"
    assert not is_final


@pytest.mark.parametrize("how", ["talk nonsense", "answer nonsense"])
def test_one_that_says_what_is_no_message_is_killed_for_it(stage, act, how):
    act(how)
    stage.open()
    _, _, reason, is_final = stage.event("bridge_ended", BRIDGE)
    assert "was killed by the daemon: " in reason
    assert not is_final
    assert [each[0] for each in stage.told] == ["bridge_ended"]


def test_one_whose_answer_is_none_is_killed_for_it(served):
    """What the engine says to an answer that cannot be."""
    served.refuses.add("remote_message")
    served.call("tell", BRIDGE, FillRemote(5, ((8, FILL_WHOLE, 0, 1, 0, 4, 2), (9, FILL_WHOLE, 0, 2, 0, 4, 3))))
    assert "that is no answer" in served.event("bridge_ended", BRIDGE)[2]
    assert sum(each[0] == "remote_message" for each in served.told) == 1, "it is heard no more"


@pytest.mark.parametrize("how", ["exit", "has no cluster", "talk nonsense"])
def test_however_one_ends_no_zombie_is_left_of_it(stage, act, how):
    act(how)
    stage.open()
    pid = stage.bridges.pid(BRIDGE)
    stage.event("bridge_ended", BRIDGE)
    assert not psutil.pid_exists(pid)


def test_one_that_cannot_be_started_ends_with_the_reason(stage):
    stage.open(executable=b"/no/such/python")
    assert stage.told == [], "not from within the call"
    _, _, reason, is_final = stage.event("bridge_ended", BRIDGE)
    assert "No such file" in reason
    assert not is_final


def test_of_what_is_no_program_there_is_no_bridge(stage):
    fd = os.memfd_create("no-program")
    stage.call("open", STREAM, BRIDGE, fd, SPEC, {})
    os.close(fd)
    assert "program segment" in stage.event("bridge_ended", BRIDGE)[2]


# --- drop and close ---


def test_of_a_bridge_that_was_dropped_nothing_is_told_any_more(served):
    pid = served.bridges.pid(BRIDGE)
    served.call("tell", BRIDGE, StartRemote((5, 6)))
    served.call("drop", BRIDGE)
    assert served.bridges.pid(BRIDGE) == 0
    served.until(lambda: is_gone(pid))
    served.a_while_later()
    assert served.told == [("bridge_ready", BRIDGE)]


def test_of_one_that_could_not_be_started_nothing_is_told_after_it_was_dropped(stage):
    stage.open(executable=b"/no/such/python")
    stage.call("drop", BRIDGE)
    stage.a_while_later()
    assert stage.told == []


def test_one_of_the_same_number_may_come_after_it(served):
    served.call("drop", BRIDGE)
    served.told.clear()
    served.open()
    served.event("bridge_ready", BRIDGE)


def test_closing_leaves_no_process_and_no_descriptor(act):
    act("serve")
    former = Stage()
    former.open()
    former.event("bridge_ready", BRIDGE)
    former.bridges.close()
    former.loop.close()
    # What starts the tests' interpreters is there from here on.
    before = open_fds(os.getpid())
    stage = Stage()
    for bridge in (1, 2):
        stage.open(bridge)
        stage.event("bridge_ready", bridge)
    pids = stage.bridges.own_pids
    assert len(pids) == 2
    stage.call("close")
    assert all(map(is_gone, pids))
    assert stage.bridges.own_pids == set()
    stage.loop.close()
    assert open_fds(os.getpid()) == before


def test_one_that_has_ended_leaves_no_descriptor(stage, act):
    act("exit")
    stage.open(1)
    stage.event("bridge_ended", 1)
    before = open_fds(os.getpid())
    stage.open(2)
    stage.event("bridge_ended", 2)
    assert open_fds(os.getpid()) == before
