"""Loads the samples of a batch that one worker collates while others may help it. Decision 0117 has the reasons.

Who collates goes forward from the first row, and helpers backward from the last. Each takes a row before it loads it,
as soon as rows are known to take long: to ask for one costs some microseconds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from prefetchd.wire.worker_status import LOADING, TASK
from prefetchd.workers.sample_codec import UnshareableError, decode_sample, encode_sample
from prefetchd.workers.samples import LeftOut, Samples
from prefetchd.workers.shared_samples import SharedSamples
from prefetchd.workers.user_code import UserCodeError
from prefetchd.workers.worker_status_writer import WorkerStatusWriter

SLOW_ROW_S = 0.002
"""The time of a sample from which on another process may load it."""
STRETCH_S = 0.01
"""For how long samples are loaded before it is asked again how long they take."""
MOST_COST = 0.5
"""How much handing a sample over may take, as a share of loading it."""
SMOOTHING = 0.5

RowsOf: TypeAlias = Callable[[int, int], Iterable[tuple[int, Any]]]
"""From rows [first, end) to these and their samples, as Samples.rows has them."""


class HelpedSamples:
    """Loads whole batches of the worker whose status is `note`; `shared` are the parts of its own rows."""

    def __init__(self, note: WorkerStatusWriter, shared: SharedSamples) -> None:
        self._note = note
        self._shared = shared
        self._row_s = 0.0

    def load(self, rows: int, rows_of: RowsOf) -> list[tuple[int, Any]]:
        """Returns the batch's rows, in order, and their samples. Raises UserCodeError."""
        task = self._note.words[TASK]
        found: dict[int, Any] = {}
        others: list[int] = []
        row, is_shared = 0, False
        while row < rows:
            if self._row_s < SLOW_ROW_S:
                end = min(rows, row + max(1, int(STRETCH_S / self._row_s))) if self._row_s else row + 1
                found.update(self._timed(row, end, rows_of))
                row = end
                continue
            is_shared = True
            if self._shared.claim(row):
                found[row] = self._sample(row, task, rows_of)
            else:
                others.append(row)
            row += 1
        # What helpers have is waited for last: until then there were rows that nobody had.
        for row in others:
            self._note.phase(LOADING)
            self._note.load(row, -1)
            self._shared.wait(row)
            found[row] = self._sample(row, task, rows_of)
        if is_shared:
            self._shared.clear()
        return sorted(found.items())

    def _sample(self, row: int, task: int, rows_of: RowsOf) -> Any:
        """Returns the sample of a row that this process has, and gives the row up."""
        try:
            data = self._shared.get(row, task)
            if data is not None:
                # Whatever a dataset's objects do: then it is loaded here.
                with contextlib.suppress(Exception):
                    return decode_sample(data)
            return dict(self._timed(row, row + 1, rows_of))[row]
        finally:
            self._shared.release(row)

    def _timed(self, first: int, end: int, rows_of: RowsOf) -> list[tuple[int, Any]]:
        began_s = time.monotonic()
        found = list(rows_of(first, end))
        row_s = (time.monotonic() - began_s) / (end - first)
        self._row_s = row_s if not self._row_s else self._row_s + SMOOTHING * (row_s - self._row_s)
        return found


def help_owner(samples: Samples, rows: int, rows_of: RowsOf, shared: SharedSamples, task: int) -> tuple[int, bool]:
    """Loads samples for the owner of `shared`, as long as that has `task` in hand. Returns how many, and whether it is
    of use to go on helping with such samples. One that raises, or is left out or replaced, is the owner's to load."""
    made = tried = 0
    if not _is_slow(shared, task):
        return 0, True
    since_s = time.monotonic()
    for row in reversed(range(rows)):
        if shared.owner().task != task or _are_fast(tried, time.monotonic() - since_s):
            break
        if not shared.claim(row):
            continue
        try:
            if shared.has(row, task):
                # Another helper has loaded it, and given it up.
                continue
            tried += 1
            began_s = time.monotonic()
            try:
                sample = dict(rows_of(row, row + 1))[row]
            except UserCodeError:
                sample = None
                continue
            finally:
                # Taken in any case: else they would be told with this worker's own next batch.
                is_bad = bool(samples.take_bad())
            loaded_s = time.monotonic()
            if is_bad or type(sample) is LeftOut:
                continue
            shared.put(row, task, encode_sample(sample))
            made += 1
            if time.monotonic() - loaded_s > MOST_COST * (loaded_s - began_s):
                return made, False
        except (UnshareableError, OSError):
            return made, False
        finally:
            shared.release(row)
    return made, True


def _is_slow(shared: SharedSamples, task: int) -> bool:
    """Waits until the owner has been at one sample for SLOW_ROW_S, and returns True; False when it has loaded all, or
    does not begin. So no sample is loaded twice where none takes long."""
    since_s, has_begun = time.monotonic(), False
    while True:
        owner = shared.owner()
        if owner.task == task and owner.phase == LOADING:
            has_begun = True
            if owner.row >= 0 and time.monotonic_ns() - owner.since_ns >= SLOW_ROW_S * 1e9:
                return True
        elif has_begun or time.monotonic() - since_s > STRETCH_S:
            return False
        time.sleep(SLOW_ROW_S)


def _are_fast(rows: int, took_s: float) -> bool:
    """True when so many samples took so little time that their owner is not to ask for each: nobody is of help."""
    return took_s > STRETCH_S and took_s < SLOW_ROW_S * rows
