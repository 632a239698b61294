"""Positions knows where a loader's trainer stands, and where its next iterator begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prefetchd.wire.messages import Assume
from prefetchd.wire.shard_states import ShardState
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd_client.loader.loader_state import ResumePoint, from_state, to_state
from prefetchd_client.loader.sessions import Prepared, Session, Sessions
from prefetchd_client.loader.stream_request import StreamRequest
from prefetchd_client.session.cursors import ClientCursor
from prefetchd_client.session.run_ahead import RunAhead
from prefetchd_client.session.sampler_state import SamplerState, as_assumed


class Positions:
    """Keeps the positions of one loader, whose sessions are `sessions`; one thread at a time. `sampler_state` is that
    of its sampler, None where the order is arithmetic. It begins with `epoch`. Once `runs_out_at` batches of an epoch
    are yielded, DataLoader has run the sampler to its end, and `run_out` does to the generators what that does then.
    """

    def __init__(
        self,
        sessions: Sessions,
        sampler_state: SamplerState | None,
        runs_out_at: int = 0,
        run_out: Callable[[], object] | None = None,
        *,
        epoch: int = 0,
    ) -> None:
        self.sampler_state = sampler_state
        self._runs_out_at = runs_out_at
        self._run_out = run_out
        self._sessions = sessions
        self._epoch = epoch
        self._step = 0
        self._position = (epoch, 0)
        # How the epoch began of the iterator that whoever called next() last has.
        self._began_with: Assume | None = None
        # (epoch, by shard) where an iterable dataset's iterators stand after the batch that was yielded last.
        self._shard_states: tuple[int, Mapping[int, ShardState]] = (0, {})
        # A stream that was there already is filled where its last trainer stopped: this one may want to go on there,
        # and says where with its set_epoch() or its first next().
        self._waiting = sessions.current.take_first_cursor()
        if epoch and sampler_state is not None:
            # A planner would take the epochs before it for what has led here.
            sessions.current.assume(epoch)

    @property
    def next_epoch(self) -> int:
        """The epoch that the next iterator to begin takes."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Has the next iterator to begin take `epoch`. The step that load() has set within that epoch stays."""
        if self.sampler_state is not None:
            self.sampler_state.set_epoch(epoch)
        if epoch != self._epoch:
            self._go_to(epoch, 0)

    def state(self, spec: StreamSpec) -> dict[str, Any]:
        """Returns what state_dict() of a loader of `spec` says."""
        epoch, step = self._position
        sampler = None
        if self.sampler_state is not None:
            begun = self._began_with
            sampler = begun if begun is not None and begun.epoch == epoch else self.sampler_state.about(epoch)
        shards = self._shard_states[1] if step and self._shard_states[0] == epoch else {}
        return to_state(spec, epoch, step, sampler, shards)

    def load(self, spec: StreamSpec, state: Mapping[str, Any]) -> None:
        """Goes to where the state was taken. Raises and warns as from_state() does."""
        place = from_state(spec, state)
        if self.sampler_state is not None and place.generators is not None:
            # Before anything moves: they may be no states of these generators.
            self.sampler_state.set(place.generators)
        if self.sampler_state is not None and place.sampler_epoch >= 0:
            self.sampler_state.set_epoch(place.sampler_epoch)
        if self.sampler_state is not None:
            self.sampler_state.set_attributes(place.attributes)
        self._shard_states = (place.epoch, place.shards)
        # Before the cursor is placed: whoever begins there is to know.
        self._sessions.ensure().begin_shards(*self._shard_states)
        if place.generators is not None or place.attributes:
            # Likewise: what is ready of a plan from other states would be dropped.
            self._sessions.ensure().assume(place.epoch)
        self._go_to(place.epoch, place.step)

    def resume_point(self) -> ResumePoint:
        """Returns where state() says that the trainer stands."""
        return self._position, self._began_with, (self._shard_states[0], dict(self._shard_states[1]))

    def restore(self, resume_point: ResumePoint) -> None:
        """Goes back to `resume_point`, for an iterator that fetches ahead of what it yields."""
        self._position, self._began_with, self._shard_states = resume_point

    def run_ahead(self, ahead: RunAhead) -> None:
        """Set whether batches of an epoch are made before its iterator begins, from now on."""
        session = self._sessions.ensure()
        if ahead != session.ahead:
            session.run_ahead(ahead)
            if self._waiting is not None:
                self._place_waiting()

    def begin_epoch(self, *, anew: bool = False) -> tuple[Session, ClientCursor]:
        """Returns session and cursor of an iterator that begins; the one after it is filled ahead from now on, if that
        is allowed. With `anew` the iterator gets no batch that was made before."""
        if self._waiting is None:
            self._place_waiting()
        cursor = self._waiting
        assert cursor is not None
        session = self._sessions.ensure()
        # First: a signal's handler may raise in between, and the daemon must not be told twice that it begins.
        self._epoch, self._step = cursor.epoch + 1, 0
        self._waiting = None
        try:
            if anew:
                session.begin_anew(cursor)
            else:
                session.activate(cursor)
            self._place_waiting()
        except BaseException:
            # Nobody will have it.
            session.close_cursor(cursor)
            raise
        return session, cursor

    def move(self, cursor: ClientCursor, step: int) -> tuple[Session, ClientCursor]:
        """Returns the session that is current now, and a living cursor of it at `step` of the epoch of `cursor`, which
        is one of a former session."""
        session = self._sessions.ensure()
        moved = session.place_cursor(cursor.epoch, step)
        moved.yielded, moved.reported_length = cursor.yielded, cursor.reported_length
        moved.shard_states |= cursor.shard_states
        session.activate(moved)
        return session, moved

    def note_beginning(self, cursor: ClientCursor) -> None:
        """Notes what the generators were before the cursor's epoch, once its next() has been asked for."""
        if cursor.began_with is not None:
            self._began_with = as_assumed(cursor.began_with)

    def end_epoch(self, session: Session, cursor: ClientCursor) -> None:
        """Notes that the cursor of this session has come to its epoch's end."""
        session.ended(cursor)
        self._position = (cursor.epoch + 1, 0)

    def note_batch(self, session: Session, cursor: ClientCursor) -> None:
        """Notes that the cursor of this session has had one more batch."""
        cursor.yielded += 1
        self._position = (cursor.epoch, cursor.step)
        if self._run_out is not None and cursor.step == self._runs_out_at:
            session.ran_out(cursor, self._run_out)
        if cursor.shard_states:
            self._shard_states = (cursor.epoch, cursor.shard_states)

    def rewind(self, cursor: ClientCursor) -> None:
        """Set sampler and generators back to how the cursor's epoch began: another process plans it anew."""
        begun = cursor.began_with
        if self.sampler_state is not None and begun is not None:
            self.sampler_state.set(begun.states)
            self.sampler_state.set_attributes(begun.attributes)
            if begun.sampler_epoch >= 0:
                self.sampler_state.set_epoch(begun.sampler_epoch)

    def replace(self, request: StreamRequest, prepared: Prepared | None, epoch: int | None = None) -> None:
        """Has iterators that begin from now on iterate over the stream that `request` describes, the first one over
        `epoch`, if that is not the next one. Raises what Sessions.replace raises."""
        self.sampler_state = request.sampler_state
        waiting, self._waiting = self._waiting, None
        self._sessions.replace(request, prepared, waiting)
        self._sessions.ensure().assume(self._epoch if epoch is None else epoch)

    def give_up(self, again: Callable[[], StreamRequest]) -> None:
        """Gives the stream up, as Sessions.give_up does."""
        self._waiting = None
        self._sessions.give_up(again)

    def _go_to(self, epoch: int, step: int) -> None:
        if (epoch, step) != (self._epoch, self._step):
            self._epoch, self._step = epoch, step
            self._place_waiting()
        self._position = (epoch, step)

    def _place_waiting(self) -> None:
        if self._waiting is not None:
            self._sessions.current.close_cursor(self._waiting)
        self._waiting = self._sessions.ensure().place_cursor(self._epoch, self._step)
