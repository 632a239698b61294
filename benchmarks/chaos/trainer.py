"""start_trainer starts a trainer of a chaos run: a process that takes batches, tells of each in its journal, and
resumes from that.

A line of the journal is written by one write(2): a killed trainer has told of a batch and saved its position, or
neither.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
import traceback
from collections import deque
from pathlib import Path
from typing import Any

import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.loader.stream_names import Ordinal

from benchmarks.chaos.board import Board
from benchmarks.chaos.declared import FilesLoader
from benchmarks.chaos.work import Work, digest, scribble
from prefetchd.workers.process_setup import die_with_parent, name_process

RENEWAL = 0.01
GOES_BACK = 0.5
SCRIBBLES = 0.3


class Journal:
    """Writes one JSON object a line. `what` is "life", "back", "fresh", "loader", "batch", "end", "break", "changed",
    "closed" or "error"."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def last_state(self) -> dict[str, Any] | None:
        """Returns where the last life of this trainer stood."""
        lines = os.pread(self._fd, os.fstat(self._fd).st_size, 0).decode().split("\n")
        states = (json.loads(line)["state"] for line in reversed(lines[:-1]) if '"state"' in line)
        return next(states, None)

    def write(self, what: str, **fields: Any) -> None:
        line = json.dumps({"at": time.monotonic(), "what": what, **fields})
        os.write(self._fd, line.encode() + b"\n")


def start_trainer(work: Work, number: int, life: int, seed: int, board: Board, directory: Path) -> int:
    """Forks a trainer, and returns its pid."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    journal = Journal(directory / f"{work.name}.journal")
    code = 0
    try:
        die_with_parent(parent)
        name_process("chaos-trainer")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if work.executed:
            os.environ["PREFETCHD_START"] = "exec"
        journal.write("life", life=life, pid=os.getpid())
        _Trainer(work, number, random.Random(f"{seed} {number} {life}"), board, journal, directory).run()
    except BaseException:
        code = 1
        journal.write("error", text=traceback.format_exc())
    finally:
        os._exit(code)


class _Trainer:
    def __init__(
        self, work: Work, number: int, dice: random.Random, board: Board, journal: Journal, directory: Path
    ) -> None:
        self._work = work
        self._number = number
        self._dice = dice
        self._board = board
        self._journal = journal
        self._directory = directory
        self._breaks = board.breaks(number)
        self._state = journal.last_state()
        self._kept: deque[tuple[Any, str]] = deque()
        self._iterator: Any = None
        # A loader's default name counts those of its process. Each trainer is to have one of its own, life after life:
        # else they would be one script that runs many times at once, each with other data.
        self._ordinals = [Ordinal() for _ in range(number)]

    def run(self) -> None:
        torch.set_num_threads(1)
        self._go_back()
        fresh = False
        while self._board.running:
            renewals = self._board.renewals(self._number)
            loader = self._loader(fresh)
            while self._take_epoch(loader, renewals):
                pass
            fresh = self._board.renewals(self._number) > renewals and self._board.is_fresh(self._number)
            if self._dice.random() < 0.5:
                self._drop(0)
            loader.close()
            self._iterator = None
            self._journal.write("closed")
        self._drop(0)

    def _go_back(self) -> None:
        """Goes back a little, sometimes: a checkpoint is older than what was taken."""
        if self._state is not None and self._work.lookback and self._dice.random() < GOES_BACK:
            step = max(0, self._state["step"] - self._dice.randint(1, self._work.lookback))
            self._state = {**self._state, "step": step}
            self._journal.write("back", state=self._state)

    def _loader(self, fresh: bool) -> PrefetchLoader | FilesLoader:
        if fresh:
            self._journal.write("fresh")
        began_s = time.monotonic()
        loader = FilesLoader(self._directory) if self._work.files else self._connected(fresh)
        self._journal.write("loader", took_s=time.monotonic() - began_s, fresh=fresh)
        if self._state is not None:
            loader.load_state_dict(self._state)
        return loader

    def _connected(self, fresh: bool) -> PrefetchLoader:
        work = self._work
        return PrefetchLoader(
            work.dataset(str(self._directory / "samples")),
            batch_size=work.batch_size,
            shuffle=work.shuffle,
            num_workers=work.shards,
            generator=torch.Generator().manual_seed(work.seed) if work.generator else None,
            collate_fn=work.collate_fn,
            seed=work.seed,
            buffer=work.buffer,
            lookback=work.lookback,
            stream=work.stream,
            fresh=fresh,
        )

    def _take_epoch(self, loader: PrefetchLoader | FilesLoader, renewals: int) -> bool:
        """Takes one iterator's batches. Returns False when the loader is to be closed."""
        # Of one that is closed in the middle of an epoch the iterator lives: else what lies ahead of it would be wanted
        # by nobody any more, and need not be kept.
        self._iterator = None
        iterator = self._iterator = iter(loader)
        epoch, step = self._work.begin_of((self._state["epoch"], self._state["step"]) if self._state else (0, 0))
        if self._work.reseeds and step == 0 and isinstance(loader, PrefetchLoader):
            loader.generator.manual_seed(self._work.seed_of(epoch))
        while True:
            if not self._board.may_take(self._number, renewals):
                return False
            began_s = time.monotonic()
            try:
                batch = next(iterator)
            except StopIteration:
                self._state = loader.state_dict()
                self._journal.write("end", state=self._state)
                return True
            self._took(loader, batch, time.monotonic() - began_s)
            self._drop(self._dice.randrange(self._work.keeps + 1))
            if self._dice.random() < RENEWAL:
                return False
            if self._is_to_break_off():
                # The next iterator begins the epoch after this one; the journal says so before it does.
                self._state = dict(loader.state_dict(), epoch=loader.state_dict()["epoch"] + 1, step=0)
                self._journal.write("break", state=self._state)
                if self._work.files:
                    loader.load_state_dict(self._state)
                return True

    def _is_to_break_off(self) -> bool:
        before, self._breaks = self._breaks, self._board.breaks(self._number)
        return self._breaks > before or self._dice.random() < self._work.breaks

    def _took(self, loader: PrefetchLoader | FilesLoader, batch: Any, waited_s: float) -> None:
        found = digest(batch)
        self._state = loader.state_dict()
        self._journal.write("batch", digest=found, waited_s=waited_s, state=self._state)
        self._board.took(self._number)
        self._kept.append((batch, found))

    def _drop(self, keep: int) -> None:
        """Lets all but `keep` of the batches go; what each holds must be what it held when it came."""
        while len(self._kept) > keep:
            batch, was = self._kept.popleft()
            if digest(batch) != was:
                self._journal.write("changed", digest=was)
            if self._dice.random() < SCRIBBLES:
                scribble(batch)
