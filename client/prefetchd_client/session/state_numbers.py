"""Numbers of a position that somebody else says: in a checkpoint, in a call. Looked at before anything moves."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Mapping
from typing import Any

from prefetchd.wire.errors import CallerError

EPOCH_LIMIT = (1 << 31) - 1
STEP_LIMIT = (1 << 40) - 1
"""No training comes so far, and with neither any sum of ours leaves 64 bits."""


def whole(value: Any, name: str, most: int) -> int:
    """`value` as a number from 0 to `most`. Raises CallerError."""
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
    """Epoch and step of a state. Raises CallerError."""
    if not isinstance(state, Mapping) or "epoch" not in state or "step" not in state:
        raise CallerError(f"a state has epoch and step, as state_dict() says them; got {shown(state)}")
    return whole(state["epoch"], "the state's epoch", EPOCH_LIMIT), whole(state["step"], "the state's step", STEP_LIMIT)


def shown(value: Any) -> str:
    """What somebody else said, short and on one line."""
    try:
        return reprlib.repr(value)[:200]
    except Exception:  # its own __repr__ is not ours
        return f"a {type(value).__name__}"
