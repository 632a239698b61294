"""Lets a lazy seeder seed before somebody reads a global generator's state: reading leaves no trace that could be found
afterwards.

1. The functions that read a state ask the seeder first: random.getstate, numpy.random.get_state, torch.get_rng_state
   and torch.initial_seed. Modules that keep them under their own names, too, are given the wrapped ones.
2. torch's generator is an object of C++ whose methods cannot be wrapped. Whoever takes it, as torch.default_generator,
   may read it at any time: from then on nothing is put off for torch. Nor is it where a module has taken it before.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch

from prefetchd.workers.generator_watches import NUMPY, RANDOM, TORCH, TORCH_GENERATOR

StateReaders: TypeAlias = Sequence[tuple[dict[str, Any], str]]
"""The places, as (a module's names, the name), where modules keep the functions that read a global generator's state,
or torch's generator."""

_GENERATOR = "default_generator"
STANDS_FOR = "__prefetchd_stands_for__"
"""The attribute by which a function of ours names the one in whose place it is."""


class Asked(Protocol):
    """Whoever is asked before a state is read."""

    def before_reading(self, generator: int) -> None:
        """Seeds a generator, by its number, now, if that was put off."""

    def never_put_off(self, generator: int) -> None:
        """Seeds a generator, by its number, before each sample from now on."""


class _Hooks:
    """What is hooked in this process."""

    def __init__(self) -> None:
        self.seeder: Asked | None = None
        self.hooked = False
        self.is_generator_taken = False

    def before_reading(self, generator: int) -> None:
        if self.seeder is not None:
            self.seeder.before_reading(generator)

    def take_generator(self) -> None:
        self.is_generator_taken = True
        self.before_reading(TORCH)
        if self.seeder is not None:
            self.seeder.never_put_off(TORCH)


_hooks = _Hooks()


def ask_before_reading(seeder: Asked) -> None:
    """Lets `seeder`, and no other any more, be asked before a state is read."""
    _hooks.seeder = seeder
    if _hooks.is_generator_taken:
        seeder.never_put_off(TORCH)


def kept_state_readers() -> StateReaders:
    """Lists the state readers that modules keep under their own names by now. To be called before a fork: a look at all
    modules copies the memory that they are in."""
    kept: Mapping[str, Any] = {
        "getstate": random.getstate,
        "get_state": np.random.get_state,
        "get_rng_state": torch.get_rng_state,
        "initial_seed": torch.initial_seed,
        _GENERATOR: TORCH_GENERATOR,
    }
    found: list[tuple[dict[str, Any], str]] = []
    # A trainer has thousands of modules, and waits.
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if type(names) is not dict:
            continue
        for name, reader in kept.items():
            if names.get(name) is reader and not (name == _GENERATOR and _is_torch_s(module_name)):
                found.append((names, name))
    return found


def _is_torch_s(module_name: str) -> bool:
    # Its own reading is done by the functions that are wrapped.
    return module_name == "torch" or module_name.startswith("torch.")


def hook_state_readers(kept: StateReaders = ()) -> None:
    """Lets a lazy seeder be asked before a global generator's state is read, from now on. Idempotent.

    Only for workers' processes, and before the user's modules are imported: they may keep these functions. Those that
    are `kept` by then are replaced.
    """
    if _hooks.hooked:
        return
    _hooks.hooked = True
    hooked = {**_hook_random(), **_hook_numpy(), **_hook_torch()}
    for names, name in kept:
        if name == _GENERATOR:
            _hooks.is_generator_taken = True
        else:
            names[name] = hooked[name]


def _hook_random() -> dict[str, Callable[..., Any]]:
    instance, read = random._inst, random.Random.getstate

    def getstate(self: random.Random) -> tuple[Any, ...]:
        if self is instance:
            _hooks.before_reading(RANDOM)
        return read(self)

    random.Random.getstate = _standing_for(read, getstate)  # type: ignore[method-assign]
    random.getstate = instance.getstate
    return {"getstate": random.getstate}


def _hook_numpy() -> dict[str, Callable[..., Any]]:
    read: Any = np.random.get_state

    def get_state(legacy: bool = True) -> Any:
        _hooks.before_reading(NUMPY)
        return read(legacy)

    np.random.get_state = np.random.mtrand.get_state = _standing_for(read, get_state)
    return {"get_state": get_state}


def _hook_torch() -> dict[str, Callable[..., Any]]:
    read_state, read_seed = torch.get_rng_state, torch.initial_seed

    def get_rng_state() -> torch.Tensor:
        _hooks.before_reading(TORCH)
        return read_state()

    def initial_seed() -> int:
        _hooks.before_reading(TORCH)
        return read_seed()

    torch.get_rng_state = torch.random.get_rng_state = _standing_for(read_state, get_rng_state)
    torch.initial_seed = torch.random.initial_seed = _standing_for(read_seed, initial_seed)
    # A name that a module does not have is asked of its __getattr__. Not by a class of its own: what torch is would
    # then be something else to a fingerprint that is taken here.
    names = vars(torch)
    others: Callable[[str], Any] = names["__getattr__"]

    def __getattr__(name: str) -> Any:  # noqa: N807 - a module's
        if name == _GENERATOR:
            _hooks.take_generator()
            return TORCH_GENERATOR
        return others(name)

    names["__getattr__"] = __getattr__
    names.pop(_GENERATOR, None)
    return {"get_rng_state": get_rng_state, "initial_seed": initial_seed}


def _standing_for(original: Any, hooked: Callable[..., Any]) -> Callable[..., Any]:
    # A fingerprint that is taken in a worker's process must be that of the trainer's.
    vars(hooked)[STANDS_FOR] = original
    return hooked
