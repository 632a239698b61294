"""Trail and recomputed judge whether all went well: every batch against the oracle, in order, and nothing made twice
that was ready."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from benchmarks.chaos.daemon_watch import Death
from benchmarks.chaos.rings import ReadyBatch
from benchmarks.chaos.work import NOTE, WORKS, Work, digest
from tests.scenario.oracle import SAMPLE, batch_at, derive, iterable_epoch

Position = tuple[int, int]

LONG_WAIT_S = 0.1
MOST_SLOTS_A_BATCH = 3
SEARCHED = 3
"""The epochs around a position in which a wrong batch is looked for."""


class Oracle:
    """Computes the digest of every batch, in this process and from the formulas of docs/formats.md alone."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Position], str] = {}
        self._orders: dict[int, list[list[int]]] = {}
        self._loaders: dict[int, DataLoader[int]] = {}

    def order(self, work: Work, epoch: int) -> list[int] | None:
        """Returns what DataLoader makes of the work's generator; None where there is none."""
        if not work.generator:
            return None
        orders = self._orders.setdefault(work.seed, [])
        if work.seed not in self._loaders:
            generator = torch.Generator().manual_seed(work.seed)
            self._loaders[work.seed] = DataLoader(
                range(work.length),  # type: ignore[arg-type]
                work.batch_size,
                shuffle=True,
                generator=generator,
                collate_fn=list,
            )
        loader = self._loaders[work.seed]
        while len(orders) <= epoch:
            if work.reseeds:
                loader.generator.manual_seed(work.seed_of(len(orders)))
            orders.append([index for batch in loader for index in batch])
        return orders[epoch]

    def digest(self, work: Work, position: Position) -> str:
        key = (work.seed, position)
        if key not in self._known and work.shards:
            batches = iterable_epoch(
                work.dataset(), position[0], work.shards, batch_size=work.batch_size, seed=work.seed
            )
            self._known |= {(work.seed, (position[0], step)): digest(batch) for step, batch in batches.items()}
            return self._known.get(key, "")
        if key not in self._known:
            given: dict[str, Any] = {} if work.collate_fn is None else {"collate_fn": work.collate_fn}
            batch = batch_at(
                work.dataset(),
                *position,
                batch_size=work.batch_size,
                seed=work.seed,
                shuffle=work.shuffle,
                order=self.order(work, position[0]),
                **given,
            )
            self._known[key] = digest(batch)
        return self._known[key]

    def find(self, work: Work, found: str, near: Position) -> Position | None:
        """Returns which batch it is, if it is one."""
        epochs = range(max(0, near[0] - SEARCHED), near[0] + SEARCHED + 1)
        positions = ((epoch, step) for epoch in epochs for step in range(work.steps))
        return next((each for each in positions if self.digest(work, each) == found), None)


class Trail:
    """Judges one trainer's journal, read on as it grows. `wrong` has what must not be, in words; `wrongs` counts it by
    kind: lost, repeated, reordered, torn, changed, error."""

    def __init__(self, work: Work, path: Path, oracle: Oracle) -> None:
        self.work = work
        self.batches = 0
        self.wrong: list[str] = []
        self.wrongs: Counter[str] = Counter()
        self.waits: list[tuple[float, float]] = []
        """(when it began, seconds) of every wait in next() of LONG_WAIT_S or more."""
        self.longest_start_s = 0.0
        self.lives: list[float] = []
        """The times at which a life, or a loader, of this trainer began."""
        self.pids: list[int] = []
        """The processes that this trainer has been."""
        self.begins: list[tuple[float, Position]] = []
        """The times at which a life, or a loader, began, and where."""
        self.resets: list[float] = []
        """The times at which this trainer asked for another ring, or went back."""
        self.closes: list[float] = []
        """The times at which a loader of this trainer was closed in order."""
        self.yields: dict[Position, list[float]] = {}
        """The times at which a position was yielded."""
        self.stood: list[tuple[float, Position]] = []
        """The times at which this trainer came to a position, and to which: by a batch, or by the end of an epoch or a
        break."""
        self._path = path
        self._oracle = oracle
        self._offset = 0
        self._expected: Position = (0, 0)
        self._asks_anew = False

    def read_on(self) -> None:
        """Judges what was written since."""
        if not self._path.exists():
            return
        with self._path.open("rb") as journal:
            journal.seek(self._offset)
            text = journal.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._judge(json.loads(line))

    def _judge(self, line: dict[str, Any]) -> None:
        what = line["what"]
        if what == "batch":
            self._batch(line)
        elif what == "end":
            if self.work.next_real_step(self._expected[1]) != self.work.steps:
                self._blame("lost", f"the epoch ends at {self._expected}")
            self._next_epoch(line)
        elif what == "break":
            self._next_epoch(line)
        elif what == "back":
            self._expected = _position(line)
            self.resets.append(line["at"])
        elif what == "fresh":
            self.resets.append(line["at"])
            self._asks_anew = True
        elif what == "closed":
            self.closes.append(line["at"])
        elif what == "changed":
            self._blame("changed", f"a batch changed while it was held, digest {line['digest']}")
        elif what == "error":
            self._blame("error", line["text"])
        elif what in ("life", "loader"):
            self.lives.append(line["at"])
            if "pid" in line:
                self.pids.append(line["pid"])
            if what == "loader":
                self._expected = self.work.begin_of(self._expected)
            self.begins.append((line["at"], self._expected))
            if line.get("fresh") or self._asks_anew:
                # No daemon need have heard of it before; one may have though the trainer was killed.
                self.resets.append(line["at"])
            self._asks_anew = False
            self.longest_start_s = max(self.longest_start_s, line.get("took_s", 0.0))

    def _next_epoch(self, line: dict[str, Any]) -> None:
        expected, told = (self._expected[0] + 1, 0), _position(line)
        if told != expected:
            self._blame("lost" if told > expected else "repeated", f"the next epoch is {told}; {expected} was to come")
        self._expected = told
        self.stood.append((line["at"], told))

    def _batch(self, line: dict[str, Any]) -> None:
        self.batches += 1
        if line["waited_s"] >= LONG_WAIT_S:
            self.waits.append((line["at"] - line["waited_s"], line["waited_s"]))
        epoch, after = _position(line)
        told = (epoch, after - 1)
        expected = (self._expected[0], self.work.next_real_step(self._expected[1]))
        if told != expected:
            kind = "lost" if told > expected else "repeated"
            self._blame(kind, f"told as {told}; {expected} was to come")
        if line["digest"] != self._oracle.digest(self.work, told):
            is_ = self._oracle.find(self.work, line["digest"], told)
            kind = "torn" if is_ is None else "reordered"
            self._blame(kind, f"told as {told}, with the content of {is_ or 'no batch at all'}")
        self._expected = (epoch, after)
        self.stood.append((line["at"], self._expected))
        self.yields.setdefault(told, []).append(line["at"])

    def made_room(self, position: Position, since_s: float, until_s: float) -> bool:
        """Returns True when the batch need not have been kept: its ring had no trainer at some time between these, and
        so half of it was for one that begins again; there is no room then for what lies further ahead than the other
        half."""
        ahead = max(1, (self.work.buffer - self.work.lookback) // 2 // MOST_SLOTS_A_BATCH)
        return any(
            since_s < at_s < until_s and self._batches(position) >= self._batches(stood) + ahead
            for at_s, stood in self.begins
        )

    def made_for_another(self, position: Position, since_s: float, until_s: float) -> bool:
        """Returns True when this trainer had left the batch behind, and nobody was there as it was made once more, or
        as it was claimed for that: it is for a run that begins again. An epoch that is broken off leaves batches behind
        that were never yielded."""
        had = any(since_s < at_s < until_s and stood > position for at_s, stood in self.stood)
        follows_s = min((at_s for times in self.yields.values() for at_s in times if at_s >= until_s), default=math.inf)
        begins_s = min((at_s for at_s in self.lives if at_s >= until_s), default=math.inf)
        # What was claimed while nobody was there may be made when the next loader has come, before its first batch.
        came_s = max((at_s for at_s in (*self.closes, *self.lives) if at_s < until_s), default=-math.inf)
        took_s = max((at_s for times in self.yields.values() for at_s in times if at_s < until_s), default=-math.inf)
        return had and (begins_s <= follows_s or came_s > took_s)

    def between(self, since_s: float, until_s: float) -> str:
        """Tells in words what this trainer did between these times: how often it began, closed, or asked for another
        ring, and where it stood."""
        stood = [position for at_s, position in self.stood if since_s < at_s < until_s]
        counts = {
            what: sum(since_s < at_s < until_s for at_s in times)
            for what, times in (("begins", self.lives), ("closes", self.closes), ("resets", self.resets))
        }
        where = f", from {stood[0]} to {stood[-1]}" if stood else ""
        return f"; {self.work.name}: {', '.join(f'{count} {what}' for what, count in counts.items())}{where}"

    def _batches(self, position: Position) -> int:
        """Returns how many batches come before the position."""
        return position[0] * self.work.steps + position[1]

    def _blame(self, kind: str, text: str) -> None:
        self.wrongs[kind] += 1
        self.wrong.append(f"{self.work.name}: {kind}: {text}")


def _position(line: dict[str, Any]) -> Position:
    return line["state"]["epoch"], line["state"]["step"]


class Samples:
    """Reads what workers have made, sample by sample, as the datasets note it."""

    def __init__(self, path: Path) -> None:
        self._made: dict[int, list[tuple[float, int]]] = {}
        self._began_s: dict[int, float] = {}
        for seed, at_ns, pid in NOTE.iter_unpack(path.read_bytes() if path.exists() else b""):
            self._made.setdefault(seed, []).append((at_ns / 1e9, pid))
            self._began_s.setdefault(pid, at_ns / 1e9)

    @property
    def count(self) -> int:
        return sum(map(len, self._made.values()))

    def made_after(self, batch: ReadyBatch, since_s: float) -> float | None:
        """Returns when a sample of the batch was made for the first time after `since_s`, by a process that had made
        none until then: workers of a daemon that died at `since_s` live a moment longer."""
        work = next(each for each in WORKS if each.seed == batch.seed)
        rows = range(batch.step * work.batch_size, min((batch.step + 1) * work.batch_size, work.length))
        seeds = [derive(work.seed, SAMPLE, batch.epoch, ordinal) >> 1 for ordinal in rows]
        made = itertools.chain.from_iterable(self._made.get(seed, ()) for seed in seeds)
        return min((at_s for at_s, pid in made if self._began_s[pid] > since_s), default=None)


def recomputed(
    deaths: list[Death],
    served: list[float],
    stops: list[float],
    killed: Mapping[int, float],
    samples: Samples,
    trails: list[Trail],
) -> tuple[list[str], int, int]:
    """Finds batches that were ready when a daemon died and were made again. Returns in words those for which there was
    no reason; then how many had one; then of how many batches all this was asked. `served` are when daemons began to
    serve, `stops` when they were told to stop, `killed` when which process was killed.

    Reasons: a daemon was stopped in order meanwhile, and its rings with it. A trainer of the stream was killed or began
    anew, and may have been handed them before; where there is a lookback that is none, but that it went back or asked
    for another ring. Nobody was there for a while, and half of the ring was for a run that begins again: they made room
    for its batches, or are these. It closed its loader while there was no daemon, and took the ring with it. One of two
    had yielded them, and the other was too far behind for them to be kept.
    """
    unexcused, excused, asked = [], 0, 0
    ends = [death.seen_s for death in deaths]

    def no_daemon_at(at_s: float) -> bool:
        died_s = max((each for each in ends if each < at_s), default=None)
        return died_s is not None and not any(died_s < each < at_s for each in served)

    for number, death in enumerate(deaths):
        for batch in death.ready:
            work = next(each for each in WORKS if each.seed == batch.seed)
            if work.reseeds or work.shards:
                # It was made for an order that nobody wanted in the end, or may have been; or an iterator goes through
                # all that comes before.
                continue
            asked += 1
            made_s = samples.made_after(batch, death.at_s)
            if made_s is None:
                continue
            consumers = [trail for trail in trails if trail.work.seed == batch.seed]
            reasons = list(stops)
            for trail in consumers:
                reasons += trail.resets if work.lookback else trail.lives
                if not work.lookback:
                    reasons += [killed[pid] for pid in trail.pids if pid in killed]
            reasons += [at_s for trail in consumers for at_s in trail.closes if no_daemon_at(at_s)]
            # Whoever is ahead and waits for a slot takes it from whoever is behind: also long after it had this batch.
            place, shared = (batch.epoch, batch.step), len(consumers) > 1
            had = shared and any(min(trail.yields.get(place, [made_s])) < made_s for trail in consumers)
            had = had or any(trail.made_for_another(place, death.at_s, made_s) for trail in consumers)
            had = had or any(trail.made_room(place, death.seen_s, made_s) for trail in consumers)
            if had or any(death.seen_s < at_s < made_s for at_s in reasons):
                excused += 1
            else:
                unexcused.append(
                    f"{work.name}: ({batch.epoch}, {batch.step}) was ready when daemon {number} died, at "
                    f"{death.at_s:.3f}; made again {made_s - death.at_s:.3f} s later"
                    + "".join(trail.between(death.at_s, made_s) for trail in consumers)
                )
    return unexcused, excused, asked


def use_one_thread() -> None:
    """Keeps torch from starting threads, as the oracle must not: trainers are forked from its process."""
    torch.set_num_threads(1)
