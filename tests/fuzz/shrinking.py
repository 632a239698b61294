"""Make a program that fails shorter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from tests.fuzz.programs import Epoch, Program
from tests.fuzz.running import check

MOST_TRIES = 60


def shrunk(what: Program) -> str:
    """Return the error of the shortest program that is found to fail as `what` does."""
    text = _error(what) or f"{what!r}\n  does not fail each time"
    tries = 0
    while tries < MOST_TRIES:
        for shorter in _shorter(what):
            tries += 1
            error = _error(shorter)
            if error or tries >= MOST_TRIES:
                break
        else:
            break
        if not error:
            break
        what, text = shorter, error
    return text


def _error(what: Program) -> str:
    try:
        check(what)
    except AssertionError as error:
        return str(error)
    return ""


def _shorter(what: Program) -> Iterator[Program]:
    """Yield programs with one thing less."""
    defaults = Program(part=what.part)
    if len(what.epochs) > 1:
        for leave in range(len(what.epochs)):
            yield dataclasses.replace(what, epochs=what.epochs[:leave] + what.epochs[leave + 1 :])
    for field in dataclasses.fields(Program):
        if field.name not in ("part", "epochs") and getattr(what, field.name) != getattr(defaults, field.name):
            if field.name == "workers" and (what.persistent or what.init or what.prefetch):
                continue
            yield dataclasses.replace(what, **{field.name: getattr(defaults, field.name)})
    for number, epoch in enumerate(what.epochs):
        for field in dataclasses.fields(Epoch):
            if getattr(epoch, field.name) != getattr(Epoch(), field.name):
                less = dataclasses.replace(epoch, **{field.name: getattr(Epoch(), field.name)})
                yield dataclasses.replace(what, epochs=(*what.epochs[:number], less, *what.epochs[number + 1 :]))
