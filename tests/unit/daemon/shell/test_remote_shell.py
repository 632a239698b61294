"""What is done of commands about other machines, and what people are told of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from prefetchd.daemon.engine import commands as c
from prefetchd.daemon.process.loop import Loop
from prefetchd.daemon.shell.remote_shell import RemoteShell
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import Filled, FillFailed, Revoke
from prefetchd.wire.remote_exception import RemoteException, encode_exception

STREAM, BRIDGE = 3, 11


class Recorded:
    """Notes each call, and gives what `answers` has for it."""

    def __init__(self, **attributes: Any) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answers: dict[str, Any] = {}
        self.__dict__.update(attributes)

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, *arguments, *options.values()))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


class Bed:
    """A shell of one stream between an engine, rings, people and bridges that note what they are told."""

    def __init__(self) -> None:
        self.stream = SimpleNamespace(number=STREAM, name="train", layout=b"the layout")
        self.engine = Recorded(streams={STREAM: self.stream})
        self.rings = Recorded(resources={STREAM: SimpleNamespace(program_fd=5, spec="the spec")})
        self.printed = Recorded()
        self.tracing = Recorded()
        loop = Loop()
        others = (self.rings, self.printed, self.tracing)
        self.shell = RemoteShell(loop, self.engine, *others, "head:1", insecure=False, nice=0)
        loop.close()
        self.bridges = self.shell.bridges = Recorded()


@pytest.fixture
def bed():
    return Bed()


# --- commands ---


def test_traces_hear_of_an_answer_before_the_engine_does(bed):
    order = []
    bed.tracing.__dict__["remote_tells"] = lambda *_: order.append("trace")
    bed.engine.__dict__["remote_message"] = lambda *_: order.append("engine")
    bed.shell.remote_message(7, Filled(((8, 100, 10, 4),)), 250)
    assert order == ["trace", "engine"]


def test_a_bridge_is_opened_with_the_stream_s_program_and_spec(bed, monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    bed.shell.execute(c.OpenBridge(STREAM, BRIDGE))
    ((name, *given, own),) = bed.bridges.calls
    assert (name, given) == ("open", [STREAM, BRIDGE, 5, "the spec"])
    assert own[b"RAY_AUTH_MODE"] == b"token"


def test_a_bridge_is_told_and_dropped_by_its_number(bed):
    bed.shell.execute(c.TellBridge(BRIDGE, Revoke(8)))
    bed.shell.execute(c.CloseBridge(BRIDGE))
    assert bed.bridges.calls == [("tell", BRIDGE, Revoke(8)), ("drop", BRIDGE)]


def test_a_ring_is_lent_with_its_stream_s_layout(bed):
    bed.rings.answers["ring"] = SimpleNamespace(writers_fd=6)
    bed.shell.execute(c.LendRingTo(BRIDGE, STREAM))
    assert bed.bridges.calls == [("lend_ring", BRIDGE, 6, b"the layout")]


@pytest.mark.parametrize("missing", ["ring", "stream"])
def test_a_ring_that_is_gone_is_not_lent(bed, missing):
    bed.rings.answers["ring"] = None if missing == "ring" else SimpleNamespace(writers_fd=6)
    if missing == "stream":
        bed.engine.streams.clear()
    bed.shell.execute(c.LendRingTo(BRIDGE, STREAM))
    assert bed.bridges.calls == []


# --- what bridges tell ---


@pytest.mark.parametrize("is_final", [False, True])
def test_ends_come_to_the_engine(bed, is_final):
    bed.shell.bridge_ended(BRIDGE, "nobody answers", is_final=is_final)
    bed.shell.remote_ended(7, "its node is gone", is_final=is_final)
    assert bed.engine.calls == [
        ("bridge_ended", BRIDGE, "nobody answers", is_final),
        ("remote_ended", 7, "its node is gone", is_final),
    ]
    assert bed.printed.calls == []


def test_other_events_come_to_the_engine_as_they_are(bed):
    bed.shell.bridge_ready(BRIDGE)
    bed.shell.remote_ready(7, "node", "processor")
    bed.shell.remote_revoked(BRIDGE, 8)
    bed.shell.remote_late(7, 8)
    assert bed.engine.calls == [
        ("bridge_ready", BRIDGE),
        ("remote_ready", 7, "node", "processor"),
        ("remote_revoked", BRIDGE, 8),
        ("remote_late", 7, 8),
    ]


def test_what_was_printed_there_is_shown_as_what_is_printed_here(bed):
    bed.shell.remote_printed(STREAM, 7, ["a line"], 2)
    assert bed.printed.calls == [("printed", STREAM, 7, ["a line"], 2, True)]


def test_what_ray_says_in_the_bridge_is_logged_and_not_shown(bed):
    bed.shell.remote_printed(STREAM, 0, ["(raylet) Raylet is terminated."], 0)
    assert bed.printed.calls == [("printed", STREAM, 0, ["(raylet) Raylet is terminated."], 0, False)]


# --- answers ---


@pytest.mark.parametrize(
    "answer", [Filled(((8, 100, 10, 4),)), FillFailed(8, encode_exception(RemoteException("E", "m", "t", "l")))]
)
def test_an_answer_comes_to_the_engine_with_the_time_it_took(bed, answer):
    bed.shell.remote_message(7, answer, 250)
    ((name, *given, now_s),) = bed.engine.calls
    assert (name, given) == ("remote_message", [7, answer, 250])
    assert now_s > 0


def test_an_error_that_nobody_could_read_is_no_answer(bed, caplog):
    with pytest.raises(ProtocolError, match="exception is damaged"):
        bed.shell.remote_message(7, FillFailed(8, b"damaged"), 250)
    assert bed.engine.calls == []
    assert [(each.msg, each.fields["worker"]) for each in caplog.records] == [("remote worker", 7)]


def test_what_the_engine_takes_for_no_answer_is_logged_and_the_bridge_pays_for_it(bed, caplog):
    bed.engine.answers["remote_message"] = ProtocolError("no such task")
    with pytest.raises(ProtocolError, match="no such task"):
        bed.shell.remote_message(7, Filled(((8, 100, 10, 4),)), 250)
    assert [each.fields["error"] for each in caplog.records] == ["no such task"]
