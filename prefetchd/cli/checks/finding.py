"""Defines the result of a check."""

from __future__ import annotations

import dataclasses

OK, ADVICE, FAILED, UNKNOWN = "ok", "advice", "failed", "not checked"


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check. `state`: OK; ADVICE, when something could be better; FAILED, when something will not
    work or is left behind; UNKNOWN, when this machine cannot be asked. `why` says why it matters, `fix` exactly what to
    do; it is empty when there is nothing to do."""

    check: str
    state: str
    found: str
    why: str
    fix: str = ""
