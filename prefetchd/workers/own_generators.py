"""Seeds random generators that a program holds in its own objects like the global ones.

A transform may have a numpy.random.RandomState, a dataset a random.Random. What they give next depends on all that was
drawn before, and so on which worker has made which samples. Here they are searched for, by the way that leads to them
from the dataset or the collate_fn, and set before each sample from its seed and that way:

    state = f(sample's seed ^ first 8 bytes of blake2b(way))        f as in wire.seed_words

so that two generators never give the same numbers, and one gives the same in every worker.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from prefetchd.wire.seed_words import GAMMA, finalise
from prefetchd.workers.generator_states import kept
from prefetchd.workers.generator_watches import TORCH_GENERATOR
from prefetchd.workers.held_objects import held_objects

_GLOBALS = (random._inst, np.random.mtrand._rand, TORCH_GENERATOR)


class OwnGenerators:
    """The generators that can be reached from `roots`, by name. Not for use by several threads."""

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self._roots = roots
        self._found: dict[int, tuple[Any, int, Callable[[int], None]]] = {}
        self.holds_torch_s = False
        """Whether something holds torch's default generator."""

    def __bool__(self) -> bool:
        return bool(self._found)

    def look(self) -> bool:
        """Searches for the generators that there are now. Returns True when there are new ones. Takes a few
        microseconds an object. Says in `holds_torch_s` whether torch's default generator is among what is held."""
        before = len(self._found)
        for way, found in held_objects(self._roots):
            if found is TORCH_GENERATOR:
                self.holds_torch_s = True
            if id(found) in self._found or any(found is each for each in _GLOBALS):
                continue
            if (seed := _seeder(found)) is not None:
                # The way that is met first is the shortest.
                word = int.from_bytes(hashlib.blake2b(way.encode(), digest_size=8).digest(), "little")
                self._found[id(found)] = found, word, seed
        return len(self._found) > before

    def seed(self, seed: int) -> None:
        """Sets each generator from `seed`."""
        for _, word, put in self._found.values():
            put(finalise((seed ^ word) + GAMMA))

    def keep(self) -> Callable[[], None]:
        """Returns what puts each generator back to what it is now."""
        puts = [kept(found) for found, _, _ in self._found.values()]

        def put_back() -> None:
            for put in puts:
                put()

        return put_back


# --- how each kind is seeded ---


def _seeder(found: Any) -> Callable[[int], None] | None:
    """Returns what sets the generator from 64 bits; None for what is none, or none that can be set."""
    # By its type: isinstance() would ask the object what it is, and that may be the user's code.
    kind = type(found)
    if issubclass(kind, random.Random):
        return None if issubclass(kind, random.SystemRandom) else functools.partial(random.Random.seed, found)
    if issubclass(kind, np.random.RandomState):
        return functools.partial(_seed_random_state, found)
    if issubclass(kind, np.random.Generator):
        return functools.partial(_seed_bits, found.bit_generator)
    if issubclass(kind, np.random.BitGenerator):
        return functools.partial(_seed_bits, found)
    if issubclass(kind, torch.Generator):
        # Never a device's: that would touch it.
        return found.manual_seed if found.device.type == "cpu" else None
    return None


def _seed_random_state(found: np.random.RandomState, seed: int) -> None:
    bits: Any = found._bit_generator
    if type(bits) is np.random.MT19937:
        np.random.RandomState.seed(found, seed >> 32)
    else:
        # With what is left over of a pair of normals.
        found.set_state(np.random.RandomState(type(bits)(seed)).get_state(legacy=False))


def _seed_bits(bits: Any, seed: int) -> None:
    if type(bits) is np.random.PCG64:
        # Its increment chooses one of 2^127 sequences: it is odd. Ten times as fast as a SeedSequence.
        state: Any = {"state": seed << 64 | finalise(seed + GAMMA), "inc": seed << 1 | 1}
        bits.state = {"bit_generator": "PCG64", "state": state, "has_uint32": 0, "uinteger": 0}
    else:
        bits.state = type(bits)(seed).state
