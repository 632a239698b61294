"""Watches the global generators of torch, numpy and random: whether somebody has drawn since they were seeded.

A generator's state tells. Looking at all of it would take longer than seeding; a few words of it do, which change with
every draw and with every round of 624 words. They are read where the generator keeps them. Where that is, is found out
and then checked against what the generator itself says, never believed: a watch that is not `trustworthy` must not be
used. Decision 0007 has the reasons.
"""

from __future__ import annotations

import os
import random
import struct
from typing import Protocol

import numpy as np
import torch

from prefetchd.workers.generator_states import memory_at, random_memory, random_memory_is_known

# By this name: who takes torch.default_generator is noticed (state_readers).
TORCH_GENERATOR: torch.Generator = torch.random.default_generator  # type: ignore[attr-defined]

TORCH, NUMPY, RANDOM = 0, 1, 2
"""The generators, by their place in watches()."""

ROUND = 624
"""The words of an MT19937's state: it makes so many numbers at a time."""


class GeneratorWatch(Protocol):
    """One global generator, and whether its state still is that which the last seeding left."""

    trustworthy: bool

    def seed(self, seed: int) -> None:
        """Seeds the generator as a sample with `seed` finds it."""

    def changed(self) -> bool:
        """Whether the state has changed since seed()."""


def watches() -> list[GeneratorWatch]:
    """Makes a watch of each global generator, in the order of TORCH, NUMPY, RANDOM."""
    return [TorchWatch(), NumpyWatch(), RandomWatch()]


class NumpyWatch:
    """Watches numpy's legacy global generator: its MT19937 state through the documented BitGenerator.ctypes
    interface."""

    def __init__(self) -> None:
        self._generator = np.random.mtrand._rand
        # Kept: the addresses below are its own.
        self._bits = self._generator._bit_generator
        self.trustworthy = type(self._bits).__name__ == "MT19937"
        address = self._bits.ctypes.state_address
        # struct { uint32_t key[624]; int pos; }
        self._words = _words(address, 2)
        self._position = _words(address + ROUND * 4, 1, "i")
        self._left = (0, 0, 0)

    def seed(self, seed: int) -> None:
        self._generator.seed(seed >> 31)
        self._left = (self._words[0], self._words[1], self._position[0])

    def changed(self) -> bool:
        words = self._words
        return (words[0], words[1], self._position[0]) != self._left


class RandomWatch:
    """Watches random's global generator. Its state lies behind the object's head."""

    def __init__(self) -> None:
        self._generator: random.Random = random._inst
        self.trustworthy = random_memory_is_known()
        state = random_memory(self._generator) if self.trustworthy else memoryview(bytes(16))
        # Its index and first word, and two more.
        self._words = state[:16].cast("Q")
        self._left = (0, 0)

    def seed(self, seed: int) -> None:
        self._generator.seed(seed)
        self._left = (self._words[0], self._words[1])

    def changed(self) -> bool:
        words = self._words
        return (words[0], words[1]) != self._left


# at::mt19937_data_pod: uint64_t seed_; int left_; bool seeded_; uint32_t next_; uint32_t state_[624]
_ENGINE = struct.Struct("=Qi?3xI2I")
# at::CPUGeneratorImplStateLegacy, as get_state() has it: uint64_t seed; int left, seeded; uint64_t next, state[624]
_STATE = struct.Struct("=QiiQ2Q")
_STATE_BYTES = 5056
_HEAD_BYTES = 512
"""How much of torch's object is searched for the engine; the whole is over five times as long."""


class TorchWatch:
    """Watches torch's default CPU generator: an object that holds nothing but the address of a C++ object, in which the
    engine lies."""

    def __init__(self) -> None:
        self._generator = TORCH_GENERATOR
        self._seed = self._generator.manual_seed
        found = self._engine()
        self.trustworthy = found is not None
        # left_ and seeded_, then next_ and the state's first word.
        self._words = _words(found + 8, 2) if found is not None else memoryview(bytes(16)).cast("Q")
        self._left = (0, 0)

    def seed(self, seed: int) -> None:
        self._seed(seed)
        self._left = (self._words[0], self._words[1])

    def changed(self) -> bool:
        words = self._words
        return (words[0], words[1]) != self._left

    def _engine(self) -> int | None:
        """Returns the address of the generator's engine; None when it is not where it is believed to be."""
        before = self._generator.get_state()
        if before.numel() != _STATE_BYTES:
            return None
        try:
            # struct { PyObject_HEAD; at::Generator cdata; ... }, and an at::Generator is one pointer.
            begin = int(_words(id(self._generator) + object.__basicsize__, 1)[0])
            self._seed(0x5EED_0F_7E57)
            for address in range(begin, begin + _HEAD_BYTES, 8):
                if self._is_engine(address) and self._follows(address):
                    return address
            return None
        finally:
            self._generator.set_state(before)

    def _follows(self, address: int) -> bool:
        """Whether what lies there changes with each draw as the generator's own state does."""
        for numbers in (1, 1, ROUND):
            torch.empty(numbers, dtype=torch.int32).random_(generator=self._generator)
            if not self._is_engine(address):
                return False
        return True

    def _is_engine(self, address: int) -> bool:
        found = _read(address, _ENGINE.size)
        # Of the legacy state only the widths differ.
        return len(found) == _ENGINE.size and _ENGINE.unpack(found) == _STATE.unpack_from(
            bytes(self._generator.get_state().numpy())
        )


def _words(address: int, count: int, form: str = "Q") -> memoryview:
    """Returns words of this process's memory; whoever owns them must outlive the view."""
    return memory_at(address, struct.calcsize(form) * count).cast(form)  # type: ignore[call-overload, no-any-return]


def _read(address: int, size: int) -> bytes:
    """Reads this process's memory; an address that is none gives no bytes, and no fault."""
    try:
        fd = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.pread(fd, size, address)
    except (OSError, OverflowError):
        return b""
    finally:
        os.close(fd)
