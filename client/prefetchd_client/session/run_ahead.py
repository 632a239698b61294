"""Decide whether batches of an epoch may be made before its iterator begins. Decision 0130 has the reasons. The rules:

1. run_ahead=True and run_ahead=False decide.
2. A program that reads live state, which the training loop may set before each epoch, is not run ahead (LIVE).
3. An iterable dataset with persistent_workers=True is not run ahead (HELD): DataLoader's workers begin its epoch when
   iter() is called, and a loop may send them something before.
4. Every other program is run ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from prefetchd.wire.messages import AHEAD, HELD, LIVE


class RunAhead(NamedTuple):
    """What PlaceCursor says of an epoch that has not begun: AHEAD, HELD or LIVE, and the reason of the latter two."""

    ahead: int = AHEAD
    why: str = ""


EVERY_EPOCH = RunAhead()


def decide(run_ahead: bool | None, live: Sequence[str] | None, *, reiterates: bool) -> RunAhead:
    """Return what the rules say of a loader. `live` names the live state that was found, None while that is unknown.
    `reiterates` is True for an iterable dataset with persistent workers."""
    if run_ahead is not None:
        return RunAhead() if run_ahead else RunAhead(HELD, "run_ahead=False")
    if live:
        others = f" (and {len(live) - 1} more)" if len(live) > 1 else ""
        return RunAhead(LIVE, live[0] + others)
    if reiterates:
        return RunAhead(HELD, "an iterable dataset with persistent_workers=True begins its epochs at iter()")
    return RunAhead()
