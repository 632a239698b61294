"""What trainers are told: the ring says of each offer before the trainer hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefetchd.daemon.engine.commands import Command, Send, WriteOffers
from prefetchd.daemon.shell.publishing import Publishing
from prefetchd.wire.messages import BatchFailed, Published

OFFER = Published(((1, 0, 0, 0, 3, 1),))
FAILURE = BatchFailed(1, 0, 1, b"it failed")


class Engine:
    """Has these rounds of publications for session 7."""

    def __init__(self, *rounds: Sequence[Command]) -> None:
        self.rounds = list(rounds)

    def has_news(self, session: int) -> bool:
        return session == 7 and bool(self.rounds)

    def publications(self, session: int) -> Sequence[Command]:
        return self.rounds.pop(0)


class Rings:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def offers(self, session: int, message: Published) -> None:
        self.log.append(("written", session, message))


class Session:
    number = 7

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.is_clear = True

    def send(self, message: Any) -> None:
        self.log.append(("sent", message))
        self.is_clear = not isinstance(message, BatchFailed)


def test_an_offer_is_written_before_it_is_sent():
    log: list[Any] = []
    engine = Engine([WriteOffers(7, OFFER), Send(7, OFFER)])
    Publishing(engine, Rings(log)).publish(Session(log))
    assert log == [("written", 7, OFFER), ("sent", OFFER)]


def test_a_session_that_does_not_read_gets_the_rest_when_it_has_read():
    log: list[Any] = []
    session = Session(log)
    publishing = Publishing(Engine([Send(7, FAILURE)], [WriteOffers(7, OFFER), Send(7, OFFER)]), Rings(log))
    publishing.publish(session)
    assert log == [("sent", FAILURE)]
    session.is_clear = True
    publishing.ready(session)
    assert log[1:] == [("written", 7, OFFER), ("sent", OFFER)]


def test_a_session_for_which_nothing_waits_is_not_published_to_when_it_has_read():
    log: list[Any] = []
    publishing = Publishing(Engine([Send(7, OFFER)]), Rings(log))
    publishing.ready(Session(log))
    assert log == []
