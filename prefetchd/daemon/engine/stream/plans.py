"""Plans keep what a planner has told of one stream, whose order only a sampler knows: keys of batches, ends, states.
Pure. The rules, whose reasons are in decisions 0021 (the planner, and the trainer that compares) and 0094 (the
beginning):

1. Plans run ahead of the filling by AHEAD steps. The planner is asked for STEPS_AN_ASK steps at a time, for the
   earliest epoch first, as a sampler only goes forward. It has at most one question.
2. A trainer is told the states of its cursor's epoch, stage by stage, each once, and compares them with its own. No
   batch of the epoch is offered before it can be told how the epoch begins (`has_begun`), and the epoch's end is not
   told before it can be told how it leaves sampler and generators (`has_ended`).
3. A trainer that begins an epoch otherwise than was planned says so (Assume). All that was planned from that epoch on
   is void, up to the first later epoch that another trainer `meant` as it is planned: of which it has said how it
   begins, or yielded. All whose epochs are void are told anew how these begin, before they are offered a batch of them.
4. An answer about an epoch that has become void since it was asked changes nothing; its last message ends the question.
5. A question is preceded by the latest assumption about its epoch, or an earlier one, that the planner was not told. A
   new planner was told none.
6. The ring bounds what is kept: plans are forgotten once no cursor can want them (`trim`), and the states of all epochs
   but the latest and those that cursors come to. The beginning stays, at most BEGINNING_STEPS of the first
   BEGINNING_EPOCHS epochs: for a script that is run again the planner, which has gone on, would have to begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable

from prefetchd.daemon.engine.stream.batches import Contents
from prefetchd.plan.keys import digest
from prefetchd.ring.cursors import Cursor, EpochLengths
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import (
    AFTER_FIRST,
    AT_END,
    BEFORE,
    STAGES,
    AskPlan,
    Assume,
    Begun,
    EpochStates,
    Message,
    PlanFailed,
    Planned,
    Rebase,
)
from prefetchd.wire.stream_spec import POSITION_LIMIT, Position

AHEAD = 32
STEPS_AN_ASK = 64
KEPT_BEYOND_NEED = 4096
KEPT_ASSUMPTIONS = 8
KEPT_STATES = 8
MOST_STATES = 1024
"""The number of epochs ahead of the cursors whose states are kept; of more, those that come first."""

BEGINNING_STEPS = 1024
BEGINNING_EPOCHS = 8
"""The most of the beginning that is kept (rule 6)."""


class Plans:
    """Keeps the plans of one stream, and the one question that its planner may have."""

    def __init__(self, lengths: EpochLengths) -> None:
        self._lengths = lengths
        self._known: dict[Position, Contents] = {}
        self._wanted: dict[int, int] = {}
        self._asked: AskPlan | None = None
        self._asked_in_vain = False
        self._assumed: list[Assume] = []
        self._planner_knows = 0
        self._states: dict[tuple[int, int], Begun] = {}
        self._stage_sent: dict[Hashable, tuple[int, int]] = {}
        self._trim_at = KEPT_BEYOND_NEED
        self._trim_states_at = len(STAGES) * KEPT_STATES

    # --- towards the filling ---

    def at(self, position: Position) -> Contents | None:
        """Returns the batch at `position`; None when it is not planned yet, and then the planner is to be asked."""
        found = self._known.get(position)
        epoch, step = position
        if found is None:
            self._want(epoch, step)
        # Less than AHEAD steps are known from here on: those that follow the last known one are asked for now, so that
        # the filling does not come to wait for them.
        elif (epoch, step + AHEAD) not in self._known and self._lengths.steps(epoch) is None:
            while (epoch, step) in self._known:
                step += 1
            self._want(epoch, step)
        return found

    def knows(self, position: Position) -> bool:
        """True when at() would return a batch, or the epoch has ended there; unlike at(), asks for nothing."""
        return position in self._known or self._lengths.is_end(position)

    def _want(self, epoch: int, step: int) -> None:
        if not self._lengths.is_end((epoch, step)):
            self._wanted.setdefault(epoch, step)

    # --- towards the planner ---

    @property
    def has_question(self) -> bool:
        """True when the planner is to be asked something, and no question is with it."""
        return self._asked is None and bool(self._wanted)

    @property
    def asked(self) -> AskPlan | None:
        """The question that is with the planner, or None."""
        return self._asked

    def questions(self) -> list[Message]:
        """Returns what to send to the planner, which has no question; only when `has_question`."""
        # The earliest epoch first: a sampler goes forward.
        epoch = min(self._wanted)
        step = self._wanted.pop(epoch)
        begun = next((stage for stage in STAGES if (epoch, stage) not in self._states), len(STAGES))
        self._asked = AskPlan(epoch, step, STEPS_AN_ASK, begun)
        self._asked_in_vain = False
        due = [each for each in self._assumed[self._planner_knows :] if each.epoch <= epoch]
        self._planner_knows += len(due)
        return [
            *(Rebase(each.epoch, each.sampler_epoch, each.states, each.attributes) for each in due[-1:]),
            self._asked,
        ]

    def planner_is_new(self) -> None:
        """Forgets what the planner was told: another one begins, or the last one has gone. Its question is asked
        again."""
        if self._asked is not None and not self._asked_in_vain:
            self._wanted[self._asked.epoch] = self._asked.first_step
        self._asked = None
        self._planner_knows = 0

    def planner_says(self, message: Message) -> None:
        """Takes the planner's answer in. Raises ProtocolError for what it cannot answer; nothing has changed then."""
        asked = self._asked
        if not isinstance(message, (Begun, Planned, PlanFailed)) or asked is None or message.epoch != asked.epoch:
            raise ProtocolError(f"a planner does not send {type(message).__name__} now")
        _check(message, asked)
        if self._asked_in_vain:
            if isinstance(message, Planned):
                self._asked = None
        elif isinstance(message, Begun):
            self._states[message.epoch, message.stage] = message
        elif isinstance(message, PlanFailed):
            self._known[message.epoch, message.step] = Contents(0, error=message.error)
        else:
            self._planned(message)

    def _planned(self, message: Planned) -> None:
        self._asked = None
        epoch, first = message.epoch, message.first_step
        for step, (samples, keys) in enumerate(zip(message.samples, message.keys), first):
            self._known[epoch, step] = Contents(samples, keys, digest(keys))
        if message.steps >= 0:
            failed = (epoch, message.steps) in self._known
            self._lengths.learn(epoch, message.steps + failed)

    # --- towards the trainers ---

    def agrees(self, message: Assume) -> bool | None:
        """Returns whether the epoch is planned from that already; None when it is not planned from anything yet."""
        beginning = self._beginning(message.epoch)
        return None if beginning is None else beginning == message

    def assume(self, message: Assume, meant: Collection[int] = ()) -> range:
        """Voids what was planned otherwise than a trainer begins the epoch, and returns the epochs that are void (rule
        3). Others have `meant` what these epochs are planned from."""
        later = (self._beginning(epoch) for epoch in sorted(meant) if epoch > message.epoch)
        stays = next((each for each in later if each is not None), None)
        epochs = range(message.epoch, POSITION_LIMIT if stays is None else stays.epoch)
        self._known = {position: found for position, found in self._known.items() if position[0] not in epochs}
        self._states = {key: begun for key, begun in self._states.items() if key[0] not in epochs}
        self._wanted = {epoch: step for epoch, step in self._wanted.items() if epoch not in epochs}
        self._stage_sent = {key: told for key, told in self._stage_sent.items() if told[0] not in epochs}
        self._lengths.forget(epochs)
        if self._asked is not None and self._asked.epoch in epochs:
            self._asked_in_vain = True
        before = [each for each in self._assumed if each.epoch < epochs.start]
        # Assumptions about later epochs that stay are kept: a planner that comes there from before them would go on
        # with this one.
        beyond = [] if stays is None else [stays, *(each for each in self._assumed if each.epoch > stays.epoch)]
        room = KEPT_ASSUMPTIONS - 1
        beyond = beyond[:room]
        forgotten = max(0, len(before) + len(beyond) - room)
        self._planner_knows = max(0, min(self._planner_knows, len(before)) - forgotten)
        self._assumed = [*before[forgotten:], message, *beyond]
        return epochs

    def _beginning(self, epoch: int) -> Assume | None:
        """Returns what the epoch is planned from, as far as anything is known of that."""
        begun = self._states.get((epoch, BEFORE))
        if begun is not None:
            return Assume(epoch, begun.sampler_epoch, begun.states, begun.attributes)
        return next((each for each in self._assumed if each.epoch == epoch), None)

    def has_begun(self, epoch: int) -> bool:
        """True when a trainer can be told how the epoch begins (rule 2): without that it could not compare."""
        return (epoch, AFTER_FIRST) in self._states

    def want_beginning(self, epoch: int) -> None:
        """Has the planner asked how the epoch begins, unless that is known."""
        if not self.has_begun(epoch):
            self._wanted.setdefault(epoch, 0)

    def has_ended(self, epoch: int) -> bool:
        """True when a trainer can be told how the epoch leaves sampler and generators (rule 2)."""
        return (epoch, AT_END) in self._states

    def want_end(self, epoch: int) -> None:
        """Has the planner asked how the epoch, whose length is known, ends; unless that is known."""
        if not self.has_ended(epoch):
            self._wanted.setdefault(epoch, self._lengths.steps(epoch) or 0)

    def has_untold_states(self, cursor: Cursor) -> bool:
        """True when `news` would tell the cursor's trainer something."""
        return self._next_news(cursor) is not None

    def news(self, cursor: Cursor, number: int) -> list[Message]:
        """Returns the states of the cursor's epoch that its trainer was not told; `number` is its cursor. From now on
        it was."""
        told: list[Message] = []
        while (stage := self._next_news(cursor)) is not None:
            begun = self._states[cursor.epoch, stage]
            told.append(EpochStates(number, begun.epoch, stage, begun.sampler_epoch, begun.states, begun.attributes))
            self._stage_sent[cursor.key] = (cursor.epoch, stage)
        return told

    def _next_news(self, cursor: Cursor) -> int | None:
        epoch, stage = self._stage_sent.get(cursor.key, (-1, -1))
        after = stage + 1 if epoch == cursor.epoch else 0
        begun = self._states.get((cursor.epoch, after))
        return after if begun is not None and (begun.states or begun.sampler_epoch >= 0 or begun.attributes) else None

    # --- the beginning ---

    def beginning(self) -> list[Position]:
        """Returns the first batches of all epochs, as far as they are known without a gap (rule 6)."""
        found: list[Position] = []
        epoch, step = 0, 0
        while len(found) < BEGINNING_STEPS and epoch < BEGINNING_EPOCHS:
            if (epoch, step) in self._known:
                found.append((epoch, step))
                step += 1
            elif step and self._lengths.is_end((epoch, step)):
                epoch, step = epoch + 1, 0
            else:
                break
        return found

    # --- bounds ---

    def trim(self, cursors: Iterable[Cursor], is_needed: Callable[[Position], bool]) -> None:
        """Forgets what nobody needs, now and then (rule 6)."""
        trims_plans, trims_states = len(self._known) > self._trim_at, len(self._states) > self._trim_states_at
        first = {*self.beginning()} if trims_plans or trims_states else frozenset()
        if trims_plans:
            self._known = {each: found for each, found in self._known.items() if each in first or is_needed(each)}
            # Each plan is checked a few times at most, however many are needed.
            self._trim_at = KEPT_BEYOND_NEED + 2 * len(self._known)
        living = {cursor.key: cursor.epoch for cursor in cursors}
        if trims_states:
            epochs = sorted({epoch for epoch, _ in self._states})
            # A state that is forgotten costs a new planner, which begins again: the one that is there has long gone on.
            needed = [epoch for epoch in epochs if is_needed((epoch, 0))][:MOST_STATES]
            kept = {*living.values(), *needed, *epochs[-KEPT_STATES:], *(epoch for epoch, _ in first)}
            self._states = {key: begun for key, begun in self._states.items() if key[0] in kept}
            self._trim_states_at = len(STAGES) * KEPT_STATES + 2 * len(self._states)
        if len(self._stage_sent) > 2 * len(living) + KEPT_STATES:
            self._stage_sent = {key: told for key, told in self._stage_sent.items() if key in living}


def _check(message: Begun | Planned | PlanFailed, asked: AskPlan) -> None:
    """Raises ProtocolError when the message cannot be an answer to what was asked; nothing has changed then."""
    if isinstance(message, Begun):
        if message.stage not in STAGES or not -1 <= message.sampler_epoch < 1 << 63:
            raise ProtocolError(f"a planner tells of stage {message.stage}, sampler epoch {message.sampler_epoch}")
    elif isinstance(message, PlanFailed):
        if not 0 <= message.step < POSITION_LIMIT:
            raise ProtocolError(f"a planner tells of an error at step {message.step}")
    else:
        first, end, steps = message.first_step, message.first_step + len(message.keys), message.steps
        if first != asked.first_step or len(message.samples) != len(message.keys):
            raise ProtocolError(f"a planner that was asked for step {asked.first_step} tells of step {first}")
        if not (steps < 0 or steps == end or (steps <= first and not message.keys)) or not -1 <= steps < POSITION_LIMIT:
            raise ProtocolError(f"a planner tells of {steps} steps and of those up to {end}")
        if len(message.keys) > asked.steps or (steps < 0 and not message.keys):
            raise ProtocolError(f"a planner that was asked for {asked.steps} steps tells of {len(message.keys)}")
        if not all(0 <= each < POSITION_LIMIT for each in message.samples):
            raise ProtocolError("a planner tells of a batch of less than no samples")
