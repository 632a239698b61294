"""Seeds torch, numpy and random before each sample, at a price that tiny samples can pay.

What a sample sees is exactly

    torch.default_generator.manual_seed(seed); numpy.random.seed(seed >> 31); random.seed(seed)

torch is seeded each time (1 us). In a worker, numpy and random (1.3 and 3.5 us) are seeded lazily once they have gone
unused for TRIAL samples: their states then still are what the last seeding left, as two words of the state show. Should
a sample draw from one after all, its result is thrown away, the generator is seeded properly, the sample is made again,
and from then on that generator is seeded each time. Code that only reads a state (and perhaps draws, and puts it back:
then nothing shows) is served by hook_state_readers(). Decision 0007 has the reasons.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch

from prefetchd.workers.own_generators import OwnGenerators

TRIAL = 32

_T = TypeVar("_T")

_seed_torch = torch.default_generator.manual_seed


class SampleSeeder:
    """Runs a function under the seeds of a sample. Not for use by several threads."""

    def __init__(self, *, lazy: bool = False) -> None:
        """Makes a seeder. With `lazy` there is at most one a process, which nobody else seeds or draws in, and which
        has called hook_state_readers()."""
        self._watched: list[_NumpyWatch | _RandomWatch] = [_NumpyWatch(), _RandomWatch()]
        self._lazy = [lazy and watch.trustworthy for watch in self._watched]
        self._samples = 0
        self._seed: int | None = None
        self._own: OwnGenerators | None = None
        self._sought: OwnGenerators | None = None
        if lazy:
            _readers.seeder = self

    def seek(self, own: OwnGenerators) -> None:
        """Seeds what `own` finds, too, from the first sample on."""
        self._sought = own

    def run(self, seed: int, make: Callable[[Any], _T], argument: Any) -> _T:
        """Returns make(argument) with all generators seeded by `seed`. Raises what `make` raises."""
        if self._sought is not None:
            return self._seeking(self._sought, seed, make, argument)
        if self._own is not None:
            self._own.seed(seed)
        trial = self._samples < TRIAL
        self._samples += trial
        _seed_torch(seed)
        skipped = False
        for place, watch in enumerate(self._watched):
            if trial or not self._lazy[place]:
                watch.seed(seed)
            else:
                skipped = True
        self._seed = seed if skipped else None
        try:
            result = make(argument)
        except Exception:
            # What it raised may come of numbers that were never seeded for it.
            if not (skipped and self._drew()):
                raise
            return self._again(seed, make, argument)
        finally:
            self._seed = None
        if trial:
            self._drew()
        elif skipped and self._drew():
            return self._again(seed, make, argument)
        return result

    def seed(self, seed: int) -> None:
        """Seeds all generators now, for work on a batch as a whole."""
        self._seed = None
        _seed_torch(seed)
        for watch in self._watched:
            watch.seed(seed)
        if self._own is not None:
            self._own.seed(seed)

    def before_reading(self, place: int) -> None:
        """Seeds generator `place` now if that was put off: the user's code is about to read its state. What was drawn
        from it already, run() finds out."""
        watch = self._watched[place]
        if self._seed is not None and self._lazy[place] and not watch.changed():
            self._lazy[place] = False
            watch.seed(self._seed)

    def _drew(self) -> bool:
        drew = False
        for place, watch in enumerate(self._watched):
            if self._lazy[place] and watch.changed():
                self._lazy[place] = False
                drew = True
        return drew

    def _seeking(self, own: OwnGenerators, seed: int, make: Callable[[Any], _T], argument: Any) -> _T:
        """Makes the first sample of all. Where the program has generators of its own it is made twice: what an object
        makes once, when it is first asked, is to be made with its generators as every worker was given them; and some
        of them may only come to be then."""
        self._sought = None
        try:
            result = self.run(seed, make, argument)
        except Exception:
            own.look()
            if not own:
                raise
        else:
            own.look()
            if not own:
                return result
        self._own = own
        return self.run(seed, make, argument)

    def _again(self, seed: int, make: Callable[[Any], _T], argument: Any) -> _T:
        self.seed(seed)
        return make(argument)


NUMPY, RANDOM = 0, 1


class _Readers:
    """The functions that read a global generator's state, wrapped, and the seeder that they ask first."""

    def __init__(self) -> None:
        self.seeder: SampleSeeder | None = None
        self.hooked = False

    def before_reading(self, place: int) -> None:
        if self.seeder is not None:
            self.seeder.before_reading(place)


_readers = _Readers()


StateReaders: TypeAlias = Sequence[tuple[dict[str, Any], str]]
"""The places, as (a module's names, the name), where modules keep the functions that read a global generator's
state."""


def kept_state_readers() -> StateReaders:
    """Lists the state readers that modules keep under their own names by now. To be called before a fork: a look at all
    modules copies the memory that they are in."""
    readers = {"getstate": random.getstate, "get_state": np.random.get_state}
    return [
        (names, name)
        for module in list(sys.modules.values())
        for name, function in readers.items()
        if type(names := getattr(module, "__dict__", None)) is dict and names.get(name) is function
    ]


def hook_state_readers(kept: StateReaders = ()) -> None:
    """Makes random.getstate and numpy.random.get_state call a lazy seeder before they read, from now on. Idempotent.

    Only for workers' processes, and before the user's modules are imported: they may keep these functions. Those that
    are `kept` by then are replaced.
    """
    if _readers.hooked:
        return
    _readers.hooked = True
    instance = random._inst
    read_random = random.Random.getstate
    read_numpy: Any = np.random.get_state

    def getstate(self: random.Random) -> tuple[Any, ...]:
        if self is instance:
            _readers.before_reading(RANDOM)
        return read_random(self)

    def get_state(legacy: bool = True) -> Any:
        _readers.before_reading(NUMPY)
        return read_numpy(legacy)

    random.Random.getstate = getstate  # type: ignore[method-assign]
    random.getstate = instance.getstate
    np.random.get_state = np.random.mtrand.get_state = get_state
    hooked: dict[str, Any] = {"getstate": random.getstate, "get_state": get_state}
    for names, name in kept:
        names[name] = hooked[name]


class _NumpyWatch:
    """Watches numpy's legacy global generator: its MT19937 state through the documented BitGenerator.ctypes
    interface."""

    def __init__(self) -> None:
        self._generator = np.random.mtrand._rand
        # Kept: the addresses below are its own.
        self._bits = self._generator._bit_generator
        self.trustworthy = type(self._bits).__name__ == "MT19937"
        address = self._bits.ctypes.state_address
        # struct { uint32_t key[624]; int pos; }
        self._words = (ctypes.c_uint64 * 2).from_address(address + 4)
        self._position = ctypes.c_int.from_address(address + 624 * 4)
        self._left = (0, 0, 0)

    def seed(self, seed: int) -> None:
        self._generator.seed(seed >> 31)
        self._left = (self._words[0], self._words[1], self._position.value)

    def changed(self) -> bool:
        words = self._words
        return (words[0], words[1], self._position.value) != self._left


class _RandomWatch:
    """Watches random's global generator. Its state lies behind the object's head; that is checked, not believed."""

    def __init__(self) -> None:
        self._generator: random.Random = random._inst
        # struct { PyObject_HEAD; int index; uint32_t state[624]; }
        address = id(self._generator) + object.__basicsize__
        self._words = (ctypes.c_uint64 * 2).from_address(address)
        self.trustworthy = self._layout_is_known()
        self._left = (0, 0)

    def seed(self, seed: int) -> None:
        self._generator.seed(seed)
        self._left = (self._words[0], self._words[1])

    def changed(self) -> bool:
        words = self._words
        return (words[0], words[1]) != self._left

    def _layout_is_known(self) -> bool:
        before = self._generator.getstate()
        try:
            self._generator.seed(0)
            for _ in range(3):
                state = self._generator.getstate()[1]
                told = self._words[0] | self._words[1] << 64
                if told != state[624] | state[0] << 32 | state[1] << 64 | state[2] << 96:
                    return False
                self._generator.getrandbits(32)
            return True
        finally:
            self._generator.setstate(before)
