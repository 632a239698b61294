"""kept() remembers the state of a random generator, so that somebody may draw of whom it notices nothing.

get_state(), getstate() and their counterparts go word by word, through an object each: 70 us for numpy's generator, 10
for random's, and several times that where other work has emptied the caches. Of the two that are everybody's kind, an
MT19937 each, the memory is copied instead: where that lies numpy documents, and of random's it is found out.
"""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_NUMPY_STATE = struct.Struct("=624Ii")
"""struct { uint32_t key[624]; int pos; }"""
_RANDOM_STATE = struct.Struct("=i624I")
"""struct { int index; uint32_t state[624]; }, behind the object's head."""


def kept(generator: Any) -> Callable[[], object]:
    """Returns what puts the generator back to what it is now: one of random's, numpy's or torch's, with what is left
    over of a pair of normals. To be called before the generator is seeded."""
    kind = type(generator)
    if issubclass(kind, random.Random):
        return _random_kept(generator)
    if issubclass(kind, np.random.RandomState):
        return _random_state_kept(generator)
    if issubclass(kind, torch.Generator):
        return functools.partial(generator.set_state, generator.get_state())
    bits: Any = generator.bit_generator if issubclass(kind, np.random.Generator) else generator
    return functools.partial(setattr, bits, "state", bits.state)


def memory_at(address: int, size: int) -> memoryview:
    """Returns a part of this process's memory, as bytes; whoever owns it must outlive the view."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


def _random_kept(generator: random.Random) -> Callable[[], object]:
    if type(generator) is not random.Random or not random_memory_is_known():
        # Of a class of its own getstate() may be another.
        return functools.partial(random.Random.setstate, generator, random.Random.getstate(generator))
    memory = random_memory(generator)
    words, normal = memory.tobytes(), generator.gauss_next  # type: ignore[attr-defined]

    def put_back() -> None:
        memory[:] = words
        generator.gauss_next = normal  # type: ignore[attr-defined]

    return put_back


def random_memory(generator: random.Random) -> memoryview:
    """Returns where a generator of random's has its state, if random_memory_is_known()."""
    return memory_at(id(generator) + object.__basicsize__, _RANDOM_STATE.size)


@functools.cache
def random_memory_is_known() -> bool:
    """Returns True when random's generators have their state where CPython has it: in all of it is what a generator
    itself says, at once and when it has gone on."""
    generator = random.Random(0)
    if random.Random.__basicsize__ < object.__basicsize__ + _RANDOM_STATE.size:
        return False
    for _ in range(2):
        _, (*words, index), _ = generator.getstate()
        if random_memory(generator) != _RANDOM_STATE.pack(index, *words):
            return False
        generator.random()
    return True


def _random_state_kept(generator: np.random.RandomState) -> Callable[[], object]:
    bits: Any = generator._bit_generator
    if type(generator) is not np.random.RandomState or type(bits) is not np.random.MT19937:
        return functools.partial(generator.set_state, generator.get_state(legacy=False))
    memory = memory_at(bits.ctypes.state_address, _NUMPY_STATE.size)
    words = memory.tobytes()
    # Normals are made in pairs. One that is left over lies elsewhere: who draws it leaves the words as they were.
    normal = generator.standard_normal()
    has_normal = memory.tobytes() == words

    def put_back() -> None:
        # Draws what has been left over of a pair since; if that is nothing, the whole of a pair.
        found = memory.tobytes()
        generator.standard_normal()
        if memory.tobytes() != found:
            generator.standard_normal()
        memory[:] = words
        if has_normal:
            state: Any = generator.get_state(legacy=False)
            generator.set_state(state | {"has_gauss": 1, "gauss": normal})

    return put_back
