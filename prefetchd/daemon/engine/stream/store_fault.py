"""Keeps why a stream's batches cannot be stored, and when that is over. Pure.

On a full disk some batches find room and others do not, several times a second. So the fault is over only when batches
were stored and none has failed for OVER_AFTER_S, and each kind of failure is told once until then.
"""

from __future__ import annotations

OVER_AFTER_S = 2.0


class StoreFault:
    """The fault of one stream; `reason` is empty while there is none."""

    def __init__(self) -> None:
        self.reason = ""
        self._kinds: set[str] = set()
        self._has_failed = self._has_stored = False
        self._failed_s = 0.0

    def failed(self, reason: str) -> bool:
        """Notes that a batch could not be stored. Returns True when nobody was told of such a failure yet."""
        self.reason = reason
        self._has_failed, self._has_stored = True, False
        # The same failure names another file each time: "PATH: No space left on device".
        kind = reason.rpartition(": ")[2]
        is_news = kind not in self._kinds
        self._kinds.add(kind)
        return is_news

    def stored(self) -> None:
        """Notes that a batch was stored."""
        self._has_stored = True

    def end_if_over(self, now_s: float) -> bool:
        """Ends a fault that is over. Returns True when it has just ended. To be called several times a second."""
        if not self.reason:
            return False
        if self._has_failed:
            self._has_failed, self._failed_s = False, now_s
            return False
        if not self._has_stored or now_s - self._failed_s < OVER_AFTER_S:
            return False
        self.reason = ""
        self._kinds.clear()
        return True
