"""Sends what goes out to trainers: publications as fast as each reads them, and nothing that would make one wait."""

from __future__ import annotations

from prefetchd.daemon.engine import commands as c
from prefetchd.daemon.engine.engine import Engine
from prefetchd.daemon.segments.stream_rings import StreamRings
from prefetchd.daemon.sockets.listener import Listener
from prefetchd.daemon.sockets.sessions import Session
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.wire.messages import Message


class Publishing:
    """Sends the engine's news to the sessions. `listener`, whose sessions they are, is set by whoever opened it."""

    def __init__(self, engine: Engine, rings: StreamRings) -> None:
        self.listener: Listener | None = None
        self._engine = engine
        self._rings = rings
        self._wanting: set[int] = set()

    @property
    def sessions(self) -> dict[int, Session]:
        """The open sessions, by number."""
        return self.listener.sessions if self.listener is not None else {}

    def publish(self, session: Session) -> None:
        """Sends the engine's news for this session; while it is not read, the rest waits for ready()."""
        self._wanting.discard(session.number)
        while session.is_clear and self._engine.has_news(session.number):
            for command in self._engine.publications(session.number):
                self._execute(session, command)
        if self._engine.has_news(session.number):
            self._wanting.add(session.number)

    def _execute(self, session: Session, command: c.Command) -> None:
        match command:
            case c.WriteOffers(number, published):
                kill_point("daemon.publish.leased")
                self._rings.offers(number, published)
                kill_point("daemon.publish.noted")
            case c.Send(_, message):
                session.send(message)
                kill_point("daemon.publish.sent")

    def ready(self, session: Session) -> None:
        """Goes on with a session that has taken all that was to be sent to it."""
        if session.number in self._wanting:
            self.publish(session)

    def send_if_clear(self, number: int, message: Message) -> None:
        """Sends a message for people, if nothing waits to be sent: a trainer that does not read must not be closed for
        it."""
        session = self.sessions.get(number)
        if session is not None and session.is_clear:
            session.send(message)

    def forget(self, number: int) -> None:
        """Forgets a session that has ended."""
        self.sessions.pop(number, None)
        self._wanting.discard(number)
