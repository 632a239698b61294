"""Says how many workers may be busy at once: as many as were asked for, and fewer while they are killed for memory.
Pure. Decision 0018 has the reasons."""

from __future__ import annotations

RAISES_AFTER_S = 300.0
"""The seconds without such a kill after which one more may be busy."""
MOST_RAISES_AFTER_S = 3600.0


class BusyLimit:
    """The limit of one daemon. `asked` is what it comes back to; 0: any number."""

    def __init__(self, asked: int) -> None:
        self.asked = asked
        self.reset()

    def reset(self) -> None:
        """Forgets all kills: what needed so much memory is gone."""
        self.now = self._from = self.asked
        self._changed_s = 0.0
        self._raises_after_s = RAISES_AFTER_S
        self._has_raised = False

    @property
    def is_lowered(self) -> bool:
        return self.now != self.asked

    def lower(self, workers: int, now_s: float) -> bool:
        """Lowers the limit by one, since one of so many `workers` was killed for memory. False when there is but
        one."""
        before = self.now or workers
        if before <= 1:
            return False
        if not self.is_lowered:
            self._from = before
        if self._has_raised:
            # That was one too many: the next try comes later.
            self._raises_after_s = min(2 * self._raises_after_s, MOST_RAISES_AFTER_S)
        self.now, self._changed_s, self._has_raised = before - 1, now_s, False
        return True

    def tick(self, now_s: float) -> bool:
        """Raises the limit by one when no worker was killed for long. True when it has."""
        if not self.is_lowered or now_s - self._changed_s < self._raises_after_s:
            return False
        self.now, self._changed_s, self._has_raised = self.now + 1, now_s, True
        if self.now >= self._from:
            self.now = self.asked
        return True
