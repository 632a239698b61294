"""Defines what daemon and client take for a sampler's epoch: the number that set_epoch() was called with."""

from __future__ import annotations

from typing import Any

NO_EPOCH = -1


def parts_of(sampler: Any) -> list[Any]:
    """Returns `sampler` and what it is made of, by the names that torch's samplers and those made after them use."""
    found: list[Any] = []
    waiting = [sampler]
    while waiting:
        each = waiting.pop()
        if each is not None and not any(each is known for known in found):
            found.append(each)
            waiting += [getattr(each, name, None) for name in ("batch_sampler", "sampler")]
    return found


def epoch_holders(sampler: Any) -> list[Any]:
    """Returns the parts on which set_epoch() can be called and whose `epoch` is the number that it was called with."""
    return [
        each
        for each in parts_of(sampler)
        if callable(getattr(each, "set_epoch", None)) and type(getattr(each, "epoch", None)) is int
    ]
