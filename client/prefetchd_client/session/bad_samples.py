"""BadSampleList keeps samples that were left out or replaced (on_error), as the daemon names them."""

from __future__ import annotations

import sys
from typing import Any

from prefetchd.wire.messages import BadSamplesNamed

MOST_KEPT = 1000


class BadSampleList:
    """Keeps the bad samples of one session: each is told on stderr when it comes, and kept for stats()."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], str] = {}

    def named(self, message: BadSamplesNamed) -> None:
        for sample, text in zip(message.samples, message.texts):
            said = text.decode("utf-8", "replace")
            if not message.before and sample not in self._known:
                print(f"[prefetchd worker {sample[3]}] {said}", file=sys.stderr)
            if len(self._known) < MOST_KEPT:
                self._known[sample] = said

    @property
    def count(self) -> int:
        """The number of samples that were named, each index once; how often each was bad, the daemon's counters
        know."""
        return len(self._known)

    def as_dicts(self) -> list[dict[str, Any]]:
        """Returns where each bad sample stood, and what is to be said of it."""
        return [
            {"epoch": epoch, "step": step, "row": row, "text": text}
            for (epoch, step, row, *_), text in self._known.items()
        ]
