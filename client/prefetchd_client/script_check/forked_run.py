"""forked_run makes a loader's first batches in a fork of the process: whatever state the process was in, it stays in.

Both ways of a comparison begin with the same dataset, generators and caches therefore, and the script goes on with its
own as if nobody had looked.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import os
import pickle
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, Pipe
from typing import Any

import cloudpickle
import torch

from prefetchd_client.quiet import quiet

BATCH_WITHIN_S = 60.0

Begin = Callable[[contextlib.ExitStack], Iterator[Any]]
"""A function that begins an epoch. What it puts into the stack is closed when the run is through, before batches are
handed out."""


@dataclasses.dataclass(frozen=True)
class Run:
    """Describes the first batches of an epoch, without the batches. `first_s` and `all_s` are seconds since iter() was
    called (with PrefetchLoader: since the loader was made). `error` is what ended it, in words; `lost` says why nothing
    is known of it."""

    count: int = 0
    first_s: float = 0.0
    all_s: float = 0.0
    error: str = ""
    lost: str = ""

    @property
    def batch_s(self) -> float:
        """The seconds from one batch to the next, after the first."""
        return (self.all_s - self.first_s) / max(1, self.count - 1)


@dataclasses.dataclass(frozen=True)
class LostBatch:
    """Stands for a batch that could not be taken out of the fork."""

    why: str


class ForkedRun:
    """Is a run that has been done in a fork, which then hands out its batches one by one. They are kept there, so that
    taking them out does not slow the run, and here is never more than one of them."""

    def __init__(self, pid: int, link: Connection, within_s: float) -> None:
        """Waits for the run. Raises nothing when the fork dies, or is not through `within_s`: `run` says so."""
        self._pid = pid
        self._link = link
        told = self._received(within_s)
        self.run: Run = Run(lost=told.why) if isinstance(told, LostBatch) else told

    def batch(self) -> Any:
        """Returns the next batch. Raises nothing: a batch that cannot be had is a LostBatch."""
        return self._received(BATCH_WITHIN_S)

    def close(self) -> None:
        """Ends the fork. Idempotent."""
        self._link.close()
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = 0

    def _received(self, within_s: float) -> Any:
        try:
            if not self._link.poll(within_s):
                return LostBatch(f"it was not through after {within_s:.0f} s")
            # What it tells is the script's own, and so is this process.
            return pickle.loads(self._link.recv_bytes())
        except (EOFError, OSError):
            return LostBatch("its process has died")
        except Exception as error:
            return LostBatch(f"{type(error).__name__}: {error}")


_links: set[Connection] = set()
"""This process's ends of the links to its forks. A fork that keeps another's would never be told that this process is
gone."""


@contextlib.contextmanager
def forked_run(begin: Begin, batches: int, within_s: float, *, prints: bool = False) -> Iterator[ForkedRun]:
    """Runs what begin() iterates over, for so many `batches` at most, and no longer than `within_s`. What the run
    writes to stderr is shown if it `prints`. Blocks until the run is through."""
    ours, theirs = Pipe()
    _links.add(ours)
    try:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()
        # DataLoader's forks of threaded processes say nothing, either.
        drawn = random.getstate()
        with quiet(DeprecationWarning):
            pid = os.fork()
        if pid == 0:
            # Python gives a fork a seed of its own.
            random.setstate(drawn)
            _serve(theirs, begin, batches, prints)
        theirs.close()
        run = ForkedRun(pid, ours, within_s)
        try:
            yield run
        finally:
            run.close()
    finally:
        _links.discard(ours)


def _serve(link: Connection, begin: Begin, batches: int, prints: bool) -> None:
    """Runs in the fork. Does not return: nothing of the script's is to run here a second time."""
    try:
        for each in _links:
            each.close()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1) if prints else (0, 1, 2):
            os.dup2(null, fd)
        # Iterators of the script's that nobody refers to would end its workers if they were collected here.
        gc.freeze()
        # OpenMP's threads do not survive a fork, and what waits for them hangs. Workers have one, too.
        torch.set_num_threads(1)
        with contextlib.ExitStack() as stack:
            run, kept = _timed(lambda: begin(stack), batches)
        link.send_bytes(pickle.dumps(run))
        for batch in kept:
            link.send_bytes(_pickled(batch))
    finally:
        os._exit(0)


def _timed(begin: Callable[[], Iterator[Any]], batches: int) -> tuple[Run, list[Any]]:
    kept: list[Any] = []
    error, first_s, all_s = "", 0.0, 0.0
    began_s = time.perf_counter()
    try:
        for batch in itertools.islice(begin(), batches):
            all_s = time.perf_counter() - began_s
            first_s = first_s or all_s
            kept.append(batch)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    return Run(len(kept), first_s, all_s, error), kept


def _pickled(batch: Any) -> bytes:
    """Pickles the batch, by cloudpickle where pickle finds no name: classes that were defined in functions, lambdas."""
    with contextlib.suppress(Exception):
        return pickle.dumps(batch, pickle.HIGHEST_PROTOCOL)
    try:
        return bytes(cloudpickle.dumps(batch))
    except Exception as error:
        return pickle.dumps(LostBatch(f"{type(error).__name__}: {error}"))
