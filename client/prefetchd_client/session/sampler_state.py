"""SamplerState has what decides the next epoch's order beside the program, where a sampler does: the states of the
trainer's generators, and what the sampler's set_epoch() was called with. Its planner assumes both; the trainer compares
when it begins."""

from __future__ import annotations

import base64
import binascii
import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from prefetchd.wire.errors import CallerError
from prefetchd.wire.messages import Assume, EpochStates
from prefetchd.wire.sampler_epochs import (
    NO_EPOCH,
    epoch_holders,
    pack_attributes,
    parts_of,
    set_attributes,
    unpack_attributes,
)

# So that the states before and after fit into packets.
MOST_GENERATORS = 8


class SamplerState:
    """Reads and sets the states of one loader's sampler and generators, which stay the trainer's own."""

    def __init__(self, index_sampler: Any, generators: Sequence[torch.Generator]) -> None:
        """Takes the generators that the sampler uses. Raises CallerError when they are too many."""
        if len(generators) > MOST_GENERATORS:
            raise CallerError(f"the sampler uses {len(generators)} generators; allowed: {MOST_GENERATORS}")
        self.generators = list(generators)
        self._holders = epoch_holders(index_sampler)
        self._sampler = index_sampler
        self._parts = parts_of(index_sampler)
        self._has_attributes = bool(pack_attributes(index_sampler))

    def __bool__(self) -> bool:
        """Returns True when there is anything to compare."""
        return bool(self.generators or self._holders or self._has_attributes)

    @property
    def states(self) -> tuple[bytes, ...]:
        return tuple(generator.get_state().numpy().tobytes() for generator in self.generators)

    @property
    def sampler_epoch(self) -> int:
        return int(self._holders[0].epoch) if self._holders else NO_EPOCH

    def set_epoch(self, epoch: int) -> None:
        for holder in self._holders:
            holder.set_epoch(epoch)

    def advance(self, before: int, after: int) -> None:
        """Sets the sampler's epoch to what a pass of its own would have made of `before`, which it is. Does nothing if
        somebody has set it to another meanwhile."""
        if before != after and self.sampler_epoch == before:
            self.set_epoch(after)

    def go_on(self, before: bytes, after: bytes) -> None:
        """Set the sampler's plain attributes to what its pass in the planner has made of them. An attribute that is not
        what it was there before the pass stays: the script has set it."""
        former, latter = unpack_attributes(before), unpack_attributes(after)
        for key, value in latter.items():
            number, name = key
            part = self._parts[number] if number < len(self._parts) else None
            if part is None or key not in former or former[key] == value:
                continue
            own = vars(part)
            if own.get(name) == former[key]:
                own[name] = value

    def about(self, epoch: int) -> Assume:
        """Returns how `epoch` would begin now."""
        return Assume(epoch, self.sampler_epoch, self.states, pack_attributes(self._sampler))

    def set_attributes(self, attributes: bytes) -> None:
        """Set the sampler's plain attributes to what about() has told of a sampler like it. Raises ProtocolError."""
        set_attributes(self._sampler, attributes)

    def set(self, states: Sequence[bytes]) -> None:
        """Sets the generators' states. Raises CallerError when these are none, and leaves the generators as they
        were."""
        if len(states) != len(self.generators):
            raise CallerError(f"states of {len(states)} generators; this loader's sampler uses {len(self.generators)}")
        if not all(states):
            raise CallerError("the state of a generator is empty")
        wanted = [torch.frombuffer(bytearray(state), dtype=torch.uint8) for state in states]
        before = [generator.get_state() for generator in self.generators]
        try:
            for generator, state in zip(self.generators, wanted):
                generator.set_state(state)
        except (RuntimeError, TypeError, ValueError) as error:
            for generator, state in zip(self.generators, before):
                generator.set_state(state)
            raise CallerError(f"these are no states of this loader's generators: {error}") from None

    @contextlib.contextmanager
    def at_epoch_zero(self) -> Iterator[None]:
        """Hides, while its block runs, which epoch the sampler was set to, and its plain attributes: these make another
        plan, and no other stream."""
        found = [holder.epoch for holder in self._holders]
        hidden = [
            (vars(self._parts[number]), name, value)
            for (number, name), value in unpack_attributes(pack_attributes(self._sampler)).items()
        ]
        try:
            for holder in self._holders:
                holder.epoch = 0
            for own, name, _ in hidden:
                own[name] = None
            yield
        finally:
            for holder, epoch in zip(self._holders, found):
                holder.epoch = epoch
            for own, name, value in hidden:
                own[name] = value


def is_planned_from(planned: EpochStates, wanted: Assume) -> bool:
    """Return True when an epoch was planned from what the trainer's sampler is.

    Attributes are compared where both sides report them. A pass may put an object in the place of a plain value, as
    accelerate's SeedableRandomSampler puts a generator in the place of None: no other plan would make them equal.
    """
    if dataclasses.replace(as_assumed(planned), attributes=wanted.attributes) != wanted:
        return False
    theirs, ours = unpack_attributes(planned.attributes), unpack_attributes(wanted.attributes)
    return all(theirs[key] == ours[key] for key in theirs.keys() & ours.keys())


def as_assumed(planned: EpochStates) -> Assume:
    """Returns what an epoch was planned from, as the trainer says it."""
    return Assume(planned.epoch, planned.sampler_epoch, planned.states, planned.attributes)


def as_text(states: Sequence[bytes]) -> list[str]:
    """Returns states as state_dict() has them."""
    return [base64.b64encode(state).decode("ascii") for state in states]


def from_text(texts: Sequence[str], key: str) -> tuple[bytes, ...]:
    """Returns the states of these texts. Raises CallerError, naming the state's `key`."""
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise CallerError(f"the state's {key!r} is no list of texts")
    try:
        return tuple(base64.b64decode(text, validate=True) for text in texts)
    except (TypeError, ValueError, binascii.Error) as error:
        raise CallerError(f"the state's {key!r} has texts that are no states: {error}") from None
