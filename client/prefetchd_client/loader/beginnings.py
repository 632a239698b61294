"""Beginning says at which epoch a loader begins: after those that others of this process have begun, where the same
epoch would be the same order. Decision 0124 has the reasons. The rules:

1. Of loaders whose orders and seeds are equal in the same epoch, in which the dataset has no part, the first begins
   with epoch 0, each other with the first that none of them was given or has begun.
2. A loader that is made when the generators are in a state in which others were made, since somebody has seeded them
   again, begins where those began: the first of them first.
3. Loaders of one given stream name share it: until one of them has begun, they begin alike.
4. Where processes share an epoch each loader begins with epoch 0, as DistributedSampler does: what one of them has made
   besides must not part it from the others.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch

from prefetchd.wire.stream_spec import StreamSpec

MOST_STATES = 1024
"""States of generators that are known again. A script that makes a loader for each epoch has another one each time."""


class _GivenEpochs:
    """Knows which epochs loaders of equal orders were given to begin with, and which they have begun."""

    def __init__(self) -> None:
        self._next = 0
        self._given: OrderedDict[bytes, list[int]] = OrderedDict()
        self._latest: tuple[bytes, int] | None = None
        self._place = 0
        self._unbegun: dict[str, int] = {}

    def give(self, state: bytes, iterators: int, stream: str | None) -> int:
        """Returns the epoch that a loader begins with that is made in this state, when so many iterators have drawn
        from the generators."""
        if stream is not None and stream in self._unbegun:
            return self._unbegun[stream]
        # The state alone does not tell: nothing draws between two loaders that are made one after the other.
        self._place = self._place + 1 if self._latest == (state, iterators) else 0
        self._latest = (state, iterators)
        given = self._given.setdefault(state, [])
        self._given.move_to_end(state)
        if len(self._given) > MOST_STATES:
            self._given.popitem(last=False)
        if self._place == len(given):
            given.append(self._next)
        epoch = given[self._place]
        self._next = max(self._next, epoch + 1)
        if stream is not None:
            self._unbegun[stream] = epoch
        return epoch

    def begun(self, epoch: int, stream: str | None) -> None:
        self._next = max(self._next, epoch + 1)
        if stream is not None:
            self._unbegun.pop(stream, None)


_by_order: dict[Hashable, _GivenEpochs] = {}
_iterators = 0


class Beginning:
    """Is where one loader begins: with `epoch`, where nobody says otherwise."""

    def __init__(self, epoch: int = 0, given: _GivenEpochs | None = None, stream: str | None = None) -> None:
        self.epoch = epoch
        self._given = given
        self._stream = stream

    def begun(self, epoch: int) -> None:
        """Notes that an iterator of the loader begins this epoch."""
        if self._given is not None:
            self._given.begun(epoch, self._stream)


def beginning_of(spec: StreamSpec, generator: Any, stream: str | None) -> Beginning:
    """Returns where a loader of `spec` begins that is made now, of which `stream` is the given name. Two threads that
    make one at the same moment may begin alike."""
    if spec.world_size > 1:
        return Beginning()
    found = _by_order.setdefault((spec.seed, spec.order, spec.length), _GivenEpochs())
    state = hashlib.blake2b(torch.get_rng_state().numpy().tobytes(), digest_size=16)
    # Some hand over what only their own sampler can use.
    if isinstance(generator, torch.Generator):
        state.update(generator.get_state().numpy().tobytes())
    return Beginning(found.give(state.digest(), _iterators, stream), found, stream)


def note_iterator() -> None:
    """Notes that an iterator draws from the generators as DataLoader's do."""
    global _iterators
    _iterators += 1


def forget() -> None:
    """Forgets all loaders that were made: the next one is the first."""
    _by_order.clear()
