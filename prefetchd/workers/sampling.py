"""Runs a stream's sampler, epoch after epoch, and keeps what it gave. In the planner's process, or in the trainer's.

Each epoch is what DataLoader would make of the same sampler and generators: iter() of the sampler, then one draw from
the loader's own generator (DataLoader's base seed; with persistent workers in epoch 0 alone), then next() for each
batch. The global generators of torch, numpy
and random begin each epoch with the sampler seed (plan.seeds), so that what a sampler draws from them is the same in
every run.

An epoch is run to its end before the next one begins: what the sampler and its generators keep from one to the next is
as it would be in a training loop. An epoch that is broken off is not run on where nothing is kept: with torch's own
samplers without a generator, and with a long sampler that holds after its first batch what it held before. Of 16
million samples that takes seconds.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from prefetchd.plan.keys import pack_batch, pack_one
from prefetchd.plan.seeds import sampler_seed
from prefetchd.wire.messages import AFTER_FIRST, AT_END, BEFORE
from prefetchd.wire.sampler_epochs import NO_EPOCH, epoch_holders, pack_attributes, parts_of, set_attributes
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.held_values import first_change, plain_values
from prefetchd.workers.program import Program

KEPT_EPOCHS = 3
"""How many epochs' keys stay, the latest to begin: those that living cursors are in, and the one ahead."""

ENDLESS_AFTER = 1 << 24
"""How many samples of one epoch its sampler may give before it is taken for one that never ends: another epoch may
begin then."""

ENDLESS_UNSIZED_AFTER = 1 << 20
"""The same of a sampler that has no length, as one that never ends has none: a third of a second, and 20 MB of keys."""

# The same in every epoch that is told apart by its seed or by set_epoch() alone.
_STATELESS = (RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler)


LONG_SAMPLES = 1 << 20
"""The length of a sampler from which on an epoch that is broken off is not always run to its end (0.3 s)."""


class OutOfReach(Exception):  # noqa: N818 - it is told, not raised to anybody
    """The epoch lies behind, and what the sampler was then is gone: whoever starts anew can plan it."""


@dataclasses.dataclass
class PlannedEpoch:
    """The batches that the sampler has given so far; `keys` and `samples` by step. `error` stands in the place of the
    next one. `sampler_epochs` has what the sampler's epoch was before, after its first batch and at its end: one that
    counts its own passes changes that itself. Where nothing `is_remembered` the sampler was after the first batch as
    before it."""

    sampler_epochs: dict[int, int] = dataclasses.field(default_factory=dict)
    attributes: dict[int, bytes] = dataclasses.field(default_factory=dict)
    states: dict[int, tuple[bytes, ...]] = dataclasses.field(default_factory=dict)
    keys: list[bytes] = dataclasses.field(default_factory=list)
    samples: list[int] = dataclasses.field(default_factory=list)
    given: int = 0
    ended: bool = False
    error: Exception | None = None
    batches: Iterator[Any] | None = None
    is_remembered: bool = True


class Sampling:
    """The sampler of one stream. Not for use by several threads."""

    def __init__(self, spec: StreamSpec, program: Program, *, shared: bool = False) -> None:
        """Takes the program. `shared`: the objects are the trainer's own, which calls set_epoch() itself and goes where
        it likes."""
        self._spec = spec
        self._sampler = program.index_sampler
        self._generator = program.generator
        self._generators = list(program.generators)
        self._seeds_once = program.seeds_once
        # A trainer sets the epoch of its own sampler itself.
        self._told_epoch = epoch_holders(self._sampler)
        self._holders = [] if shared else self._told_epoch
        self._shared = shared
        self._jumps = shared or (not self._generators and is_stateless(self._sampler))
        self._next = 0
        self._epochs: dict[int, PlannedEpoch] = {}
        self._anchor = (0, self._holders[0].epoch if self._holders else NO_EPOCH)
        self._stride = 1
        self._ambient: tuple[Any, ...] | None = None
        # What it keeps of its passes is no generator's state: nobody can tell it to be another.
        self._fresh = None if self._jumps or not (self._holders or self._generators) else self._kept()

    def rebase(self, epoch: int, sampler_epoch: int, states: tuple[bytes, ...], attributes: bytes = b"") -> None:
        """Begins `epoch` with these states, whatever came before it; it and those after it are planned anew. Raises
        ValueError when these are not the generators' states, and OutOfReach when the sampler has gone on by itself
        since the epoch began."""
        if epoch < self._next and self._has_gone_on:
            raise OutOfReach
        self._finish(epoch - 1)
        while self._next < epoch and self._fresh is not None:
            self._begin(self._next)
            self._finish(self._next - 1)
            if not self._has_gone_on:
                break
        for planned in [each for each in self._epochs if each >= epoch]:
            del self._epochs[planned]
        self._next = epoch
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        set_attributes(self._sampler, attributes)
        since, former = self._anchor
        if epoch > since:
            self._stride = (sampler_epoch - former) // (epoch - since)
        self._anchor = (epoch, sampler_epoch)

    def plan(self, epoch: int, steps: int) -> PlannedEpoch:
        """Returns the epoch with its first `steps` batches, unless it has fewer. Raises OutOfReach."""
        if epoch not in self._epochs:
            if self._jumps and (epoch != self._next):
                self._next = epoch
            if epoch < self._next:
                raise OutOfReach
            while self._next <= epoch:
                if not self._jumps and not self._may_leave(self._next - 1):
                    self._finish(self._next - 1)
                self._begin(self._next)
        planned = self._epochs[epoch]
        self._extend(planned, epoch, steps)
        return planned

    def began_with(self, epoch: int) -> tuple[int, tuple[bytes, ...]] | None:
        """Return the sampler's epoch and the generators' states before `epoch`; None when it is not kept."""
        planned = self._epochs.get(epoch)
        return (planned.sampler_epochs[BEFORE], planned.states[BEFORE]) if planned is not None else None

    # --- inside ---

    def _begin(self, epoch: int) -> None:
        planned = self._epochs[epoch] = PlannedEpoch()
        self._next = epoch + 1
        for old in list(self._epochs)[:-KEPT_EPOCHS]:
            del self._epochs[old]
        seed = sampler_seed(self._spec.seed, epoch, self._spec.rank)
        before = self._kept() if self._is_long else None
        # Whoever runs the sampler, perhaps the trainer itself, has its own numbers again afterwards.
        outside = _ambient_states()
        try:
            if self._holders:
                since, former = self._anchor
                for holder in self._holders:
                    holder.set_epoch(former + (epoch - since) * self._stride)
            planned.sampler_epochs[BEFORE] = self._sampler_epoch
            planned.attributes[BEFORE] = self._attributes()
            planned.states[BEFORE] = self.states()
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed >> 31)
            random.seed(seed)
            planned.batches = iter(self._sampler)
            if self._generator is not None and not (self._seeds_once and epoch):
                torch.empty((), dtype=torch.int64).random_(generator=self._generator)
        except Exception as error:
            self._end(planned, error)
        finally:
            self._ambient = _ambient_states()
            _set_ambient(outside)
        self._extend(planned, epoch, 1)
        planned.states.setdefault(AFTER_FIRST, self.states())
        planned.sampler_epochs.setdefault(AFTER_FIRST, self._sampler_epoch)
        planned.attributes.setdefault(AFTER_FIRST, self._attributes())
        planned.is_remembered = before is None or bool(first_change(before, self._kept()))

    def _extend(self, planned: PlannedEpoch, epoch: int, steps: int) -> None:
        if planned.ended or len(planned.keys) >= steps:
            return
        one_by_one = self._spec.batch_size == 0
        outside = _ambient_states()
        # The latest epoch goes on where its sampler left the global generators; where an older one did is not known any
        # more.
        if self._ambient is not None and epoch == self._next - 1:
            _set_ambient(self._ambient)
        try:
            assert planned.batches is not None
            while len(planned.keys) < steps:
                found = next(planned.batches, _END)
                if found is _END:
                    self._end(planned)
                    break
                if one_by_one:
                    blob, samples = pack_one(found, planned.given), 1
                else:
                    blob, samples = pack_batch(found, planned.given)
                planned.keys.append(blob)
                planned.samples.append(samples)
                planned.given += samples
        except Exception as error:
            self._end(planned, error)
        finally:
            if epoch == self._next - 1:
                self._ambient = _ambient_states()
            _set_ambient(outside)

    def _end(self, planned: PlannedEpoch, error: Exception | None = None) -> None:
        planned.ended, planned.error, planned.batches = True, error, None
        planned.states[AT_END] = self.states()
        planned.sampler_epochs[AT_END] = self._sampler_epoch
        planned.attributes[AT_END] = self._attributes()

    @property
    def _is_long(self) -> bool:
        # Generators, and what counts its passes, go on from where an epoch ends.
        if self._generators or self._holders:
            return False
        return _length_of(self._sampler) * max(1, self._spec.batch_size) >= LONG_SAMPLES

    def _may_leave(self, epoch: int) -> bool:
        """True when `epoch` need not be run to its end before the next one."""
        planned = self._epochs.get(epoch)
        return planned is not None and not planned.is_remembered

    def _finish(self, epoch: int) -> None:
        # The trainer's own sampler is where the trainer has left it.
        planned = self._epochs.get(epoch) if not self._shared else None
        most = ENDLESS_AFTER if _length_of(self._sampler) >= 0 else ENDLESS_UNSIZED_AFTER
        while planned is not None and not planned.ended and planned.given < most:
            self._extend(planned, epoch, len(planned.keys) + 1024)

    @property
    def _sampler_epoch(self) -> int:
        return int(self._told_epoch[0].epoch) if self._told_epoch else NO_EPOCH

    def _attributes(self) -> bytes:
        """Return what the sampler may keep of its passes in plain attributes."""
        return b"" if self._shared else pack_attributes(self._sampler)

    @property
    def _has_gone_on(self) -> bool:
        """True once the sampler keeps something of its passes, beside what set_epoch() says."""
        return self._fresh is not None and bool(first_change(self._fresh, self._kept()))

    def _kept(self) -> dict[str, Any]:
        return {way: each for way, each in plain_values(self._sampler).items() if not way.endswith(".epoch")}

    def states(self) -> tuple[bytes, ...]:
        """Returns the states of the program's generators, now."""
        return tuple(generator.get_state().numpy().tobytes() for generator in self._generators)


_END = object()


def is_stateless(sampler: Any) -> bool:
    """Returns True when each epoch is known without those before it."""
    return all(type(each) is BatchSampler or type(each) in _STATELESS for each in parts_of(sampler))


def _length_of(sampler: Any) -> int:
    """Returns how many batches, or samples, the sampler says that it has; -1 for one that does not say."""
    try:
        return len(sampler)
    except Exception:  # the user's own: PyTorch Geometric's raises a ValueError
        return -1


def _ambient_states() -> tuple[Any, ...]:
    return torch.get_rng_state(), np.random.get_state(), random.getstate()


def _set_ambient(states: tuple[Any, ...]) -> None:
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
