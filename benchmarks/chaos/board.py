"""Board is what the driver and its trainers tell each other at once: numbers in shared memory, each with one writer."""

from __future__ import annotations

import mmap
import time

POLL_S = 0.001
_RUNNING, _ALLOWED, _BEGINS, _FIRST = range(4)
_CELLS_A_TRAINER = 4
_TAKEN, _RENEWALS, _FRESH, _BREAKS = range(_CELLS_A_TRAINER)


class Board:
    """Holds the numbers. It is made by the driver, and trainers are forked with it."""

    def __init__(self, trainers: int) -> None:
        self._trainers = range(trainers)
        self._cells = memoryview(mmap.mmap(-1, 8 * (_FIRST + _CELLS_A_TRAINER * trainers))).cast("Q")
        self._cells[_RUNNING] = 1

    # --- the driver writes ---

    @property
    def allowed(self) -> int:
        """The batches that all trainers together may have taken: kills must not become rarer than they are to be."""
        return self._cells[_ALLOWED]

    def allow(self, batches: int) -> None:
        self._cells[_ALLOWED] = batches
        self._cells[_BEGINS] = 0

    def allow_one_each(self) -> None:
        """Allows each trainer one batch, until allow(): who is quick to start must not take what is meant for the
        slow."""
        self._cells[_ALLOWED] = 2 * len(self._trainers)
        self._cells[_BEGINS] = 1

    def renew(self, trainer: int, *, fresh: bool) -> None:
        """Has the trainer close its loader and make another one, with fresh= as told."""
        self._cells[self._at(trainer, _FRESH)] = fresh
        self._cells[self._at(trainer, _RENEWALS)] += 1

    def break_off(self, trainer: int) -> None:
        """Has the trainer go on with another epoch after its next batch."""
        self._cells[self._at(trainer, _BREAKS)] += 1

    def end(self) -> None:
        """Has all trainers close their loaders and exit."""
        self._cells[_RUNNING] = 0

    # --- trainers write ---

    def took(self, trainer: int) -> None:
        """Notes that the trainer has taken one more batch."""
        self._cells[self._at(trainer, _TAKEN)] += 1

    # --- everybody reads ---

    @property
    def running(self) -> bool:
        return bool(self._cells[_RUNNING])

    @property
    def taken(self) -> int:
        """The batches that all trainers together have taken."""
        return sum(self._cells[self._at(trainer, _TAKEN)] for trainer in self._trainers)

    def taken_by(self, trainer: int) -> int:
        return self._cells[self._at(trainer, _TAKEN)]

    def renewals(self, trainer: int) -> int:
        """Returns how often the trainer was told to make another loader."""
        return self._cells[self._at(trainer, _RENEWALS)]

    def breaks(self, trainer: int) -> int:
        """Returns how often the trainer was told to break its epoch off."""
        return self._cells[self._at(trainer, _BREAKS)]

    def is_fresh(self, trainer: int) -> bool:
        return bool(self._cells[self._at(trainer, _FRESH)])

    def may_take(self, trainer: int, renewals: int) -> bool:
        """Waits until one more batch is allowed. Returns False when the loader is to be closed instead."""
        while self.running and self.renewals(trainer) == renewals:
            if self.taken < self.allowed and not (self._cells[_BEGINS] and self.taken_by(trainer)):
                return True
            time.sleep(POLL_S)
        return False

    @staticmethod
    def _at(trainer: int, cell: int) -> int:
        return _FIRST + _CELLS_A_TRAINER * trainer + cell
