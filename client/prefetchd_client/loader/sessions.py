"""Sessions holds the sessions of one loader: that of its next iterator, and those of iterators that began before a
change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.stream_spec import Position
from prefetchd_client.loader.inline import InlineStream
from prefetchd_client.loader.stream_request import StreamRequest
from prefetchd_client.program.program_pickle import pickle_program
from prefetchd_client.session.cursors import ClientCursor
from prefetchd_client.session.stream_client import StreamClient

Prepared = tuple[bytes, list[memoryview]]
"""A pickled program, and its buffers."""

Session = StreamClient | InlineStream


class Sessions:
    """Opens, replaces and ends the sessions of one loader. One thread at a time."""

    def __init__(self, current: Session, socket: str | Path | None) -> None:
        self._current = current
        self._socket = socket
        self._former: list[Session] = []
        self._again: Callable[[], StreamRequest] | None = None

    @property
    def current(self) -> Session:
        """The session that was opened last; it may have been given up."""
        return self._current

    @property
    def is_inline(self) -> bool:
        """True while batches are made in this process."""
        return isinstance(self._current, InlineStream)

    def ensure(self) -> Session:
        """Returns the session that new cursors belong to; opens it, if the stream was given up. Raises what
        StreamClient raises then."""
        if self._again is not None:
            self._current = _open(self._socket, self._again(), fresh=False, first=None)
            self._again = None
        return self._current

    @classmethod
    def opened(cls, socket: str | Path | None, request: StreamRequest, epoch: int, *, fresh: bool) -> Sessions:
        """Opens a session on the stream that `request` describes, to be filled from `epoch` on if it is new. Raises
        what StreamClient raises."""
        return cls(_open(socket, request, fresh=fresh, first=(epoch, 0)), socket)

    def give_up(self, again: Callable[[], StreamRequest]) -> None:
        """Leaves the stream to another loader from now on; whoever needs a session still gets one on what `again`
        returns then."""
        self._current.close()
        self._again = again

    def prepare(self, request: StreamRequest) -> Prepared | None:
        """Returns what replace() needs for another stream: the pickled program, or None where none is needed. Raises
        UnpicklableError."""
        if request.inline or request.forks:
            return None
        return pickle_program(request.parts, request.spec.batch_size, shares=True)

    def replace(self, request: StreamRequest, prepared: Prepared | None, waiting: ClientCursor | None) -> None:
        """Opens a session on another stream; iterators that live go on with theirs, but for the `waiting` one. Raises
        what StreamClient raises; whoever needs a session then gets one on that stream, or the error again."""
        former = self.ensure()
        ahead = former.ahead
        if waiting is not None:
            former.close_cursor(waiting)
        if former.has_cursors:
            self._former.append(former)
        else:
            # First: its name is free then.
            former.close()
        try:
            # What was there is of something else: nobody has to wait until that is known for certain.
            self._current = _open(self._socket, request, prepared, fresh=request.forks, first=None)
            self._current.run_ahead(ahead)
        except BaseException:
            self._again = lambda: request
            raise

    def close_cursor(self, session: Session, cursor: ClientCursor) -> None:
        """Ends the cursor of an iterator of `session` that is gone, and the session with its last cursor if it was
        replaced. Idempotent."""
        session.close_cursor(cursor)
        if session in self._former and not session.has_cursors:
            self._former.remove(session)
            session.close()

    def close(self) -> None:
        """Ends all sessions. Idempotent."""
        self._again = None
        for session in (*self._former, self._current):
            session.close()

    def abandon(self) -> None:
        """Leaves all sessions to the parent, in a forked child."""
        for session in (*self._former, self._current):
            session.abandon()


def _open(
    socket: str | Path | None,
    request: StreamRequest,
    prepared: Prepared | None = None,
    *,
    fresh: bool,
    first: Position | None,
) -> Session:
    if request.inline:
        return InlineStream(request.spec, request.parts)
    paths = runtime_paths(socket)
    return StreamClient(
        paths,
        request.spec,
        request.parts,
        request.sampler_state,
        prepared,
        shared=request.shared,
        fresh=fresh,
        fork_request=request.fork_request(paths) if request.forks else None,
        first=first,
        ahead=request.ahead,
    )
