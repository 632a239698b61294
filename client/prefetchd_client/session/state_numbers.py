"""This module checks numbers of a position that come from elsewhere, such as a checkpoint or a call, before anything
moves."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Mapping
from typing import Any

from prefetchd.wire.errors import CallerError

EPOCH_LIMIT = (1 << 31) - 1
STEP_LIMIT = (1 << 40) - 1
"""Limits that no training reaches, and with which no sum of ours leaves 64 bits."""


def whole(value: Any, name: str, most: int) -> int:
    """Returns `value` as a number from 0 to `most`. Raises CallerError."""
    try:
        if isinstance(value, bool):
            raise TypeError
        found = operator.index(value)
    except TypeError:
        raise CallerError(f"{name} is {shown(value)}; allowed: a whole number from 0 to {most}") from None
    if not 0 <= found <= most:
        raise CallerError(f"{name} is {shown(found)}; allowed: a whole number from 0 to {most}")
    return found


def position_in(state: Any) -> tuple[int, int]:
    """Returns epoch and step of a state. Raises CallerError."""
    if not isinstance(state, Mapping) or "epoch" not in state or "step" not in state:
        raise CallerError(f"a state has epoch and step, as state_dict() says them; got {shown(state)}")
    return whole(state["epoch"], "the state's epoch", EPOCH_LIMIT), whole(state["step"], "the state's step", STEP_LIMIT)


def shown(value: Any) -> str:
    """Returns a value from elsewhere as a short text on one line."""
    try:
        return reprlib.repr(value)[:200]
    except Exception:  # its own __repr__ is not ours
        return f"a {type(value).__name__}"
