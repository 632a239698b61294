"""seeded() seeds a piece of work that draws at random, of which the global generators notice nothing."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator

_NUMPY_STATE = struct.Struct("=624Ii")
"""struct { uint32_t key[624]; int pos; }, as numpy documents it."""
_RANDOM_STATE = struct.Struct("=i624I")
"""struct { int index; uint32_t state[624]; }, behind the object's head."""


@contextlib.contextmanager
def seeded(seed: int, generator: torch.Generator | None = None) -> Iterator[None]:
    """Has torch's, numpy's and random's global generators, and `generator`, begin with `seed` while its block runs;
    afterwards all are as they were. Costs about 15 us."""
    own = torch.default_generator.get_state()
    device_state = generator.get_state() if generator is not None else None
    put_numpy_back, put_random_back = _numpy_kept(), _random_kept()
    try:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed >> 31)
        random.seed(seed)
        if generator is not None:
            generator.manual_seed(seed)
        yield
    finally:
        torch.default_generator.set_state(own)
        put_numpy_back()
        put_random_back()
        if generator is not None and device_state is not None:
            generator.set_state(device_state)


# get_state(), getstate() and their counterparts go word by word, through an object each: 70 us for numpy's, 10 for
# random's, and several times that where other work has emptied the caches. So their memory is copied.


def _numpy_kept() -> Callable[[], None]:
    """Returns what puts numpy's global generator back to what it is now; to be called before it is seeded."""
    bits = get_bit_generator()
    if not isinstance(bits, np.random.MT19937):
        state = np.random.get_state(legacy=False)
        return lambda: np.random.set_state(state)
    memory = _numpy_memory(bits)
    words = memory.tobytes()
    # Normals are made in pairs. One that is left over lies elsewhere: who draws it leaves the words as they were.
    normal = np.random.standard_normal()
    has_normal = memory.tobytes() == words

    def put_back() -> None:
        # Draws what the block has left over of a pair; if that was nothing, the whole of a pair.
        found = memory.tobytes()
        np.random.standard_normal()
        if memory.tobytes() != found:
            np.random.standard_normal()
        memory[:] = words
        if has_normal:
            np.random.set_state(np.random.get_state(legacy=False) | {"has_gauss": 1, "gauss": normal})

    return put_back


@functools.lru_cache(maxsize=1)
def _numpy_memory(bits: np.random.MT19937) -> memoryview:
    """Returns where the generator keeps its state; the cache keeps the generator."""
    return _memory(bits.ctypes.state_address, _NUMPY_STATE.size)


def _random_kept() -> Callable[[], None]:
    """Returns what puts random's global generator back to what it is now."""
    generator: Any = random._inst
    memory = _random_memory(generator)
    if memory is None:
        state = generator.getstate()
        return lambda: generator.setstate(state)
    words, normal = memory.tobytes(), generator.gauss_next

    def put_back() -> None:
        memory[:] = words
        generator.gauss_next = normal

    return put_back


@functools.lru_cache(maxsize=1)
def _random_memory(generator: random.Random) -> memoryview | None:
    """Returns where the generator keeps its state, or None where that is not where CPython has it. The cache keeps the
    generator."""
    if type(generator).__basicsize__ < object.__basicsize__ + _RANDOM_STATE.size:
        return None
    memory = _memory(id(generator) + object.__basicsize__, _RANDOM_STATE.size)
    _, (*words, index), _ = generator.getstate()
    return memory if memory == _RANDOM_STATE.pack(index, *words) else None


def _memory(address: int, size: int) -> memoryview:
    """Returns a part of this process's memory; whoever owns it must outlive the view."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
