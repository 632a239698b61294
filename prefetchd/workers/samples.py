"""Loads the samples of one batch, one after another: seeds them, notes them, and handles those that raise.

`on_error` of the spec decides: "raise" gives the error to the trainer in the batch's place; "skip" leaves the sample
out; "substitute" has another sample take its place (plan.seeds), seeded as the one whose place it takes. A sample that
is known to end its worker counts as one that raises, and is not tried again.

Where nothing is to be seeded (SampleSeeder.seeds_nothing), whether samples have drawn is asked only every
CHECK_EVERY_NS: it would take a fifth of what a tiny sample may cost. If one has, those since the last question are made
again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import operator
import pickle
import time
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from prefetchd.plan.batch_plan import BatchPlan
from prefetchd.plan.keyed_plan import KeyedPlan
from prefetchd.plan.seeds import SUBSTITUTES
from prefetchd.wire.durations import SHORT_US, Durations
from prefetchd.wire.errors import WorkerDiedError
from prefetchd.wire.stream_spec import Position, StreamSpec
from prefetchd.wire.worker_status import ALL_AT_ONCE, INDEX, LOADING, ROW, SINCE
from prefetchd.workers.seeding import SampleSeeder
from prefetchd.workers.user_code import UserCodeError, text_of
from prefetchd.workers.worker_status_writer import WorkerStatusWriter

TEXT_LIMIT_CHARACTERS = 300
KEY_LIMIT_CHARACTERS = 80
INDEX_LIMIT = 1 << 62
CHECK_EVERY_NS = 100_000
SHORT_NS = SHORT_US * 1000
NO_INDEX = -1
Deadly = frozenset[tuple[int, int]]
"""The (row, attempt) pairs of samples that end their workers."""

NOT_DEADLY: Deadly = frozenset()


@dataclasses.dataclass(frozen=True)
class BadSample:
    """A sample that raised, and was left out or replaced; `text` is a line for people. `index` is its key, or for a key
    that is no index a number below -1 by which it is known again."""

    row: int
    attempt: int
    index: int
    text: str


@dataclasses.dataclass(frozen=True)
class LeftOut:
    """Stands in the place of a sample that is left out."""

    error: UserCodeError


class Samples:
    """Loads samples of one dataset. The global generators of this process are its own while it does."""

    def __init__(
        self,
        spec: StreamSpec,
        plan: BatchPlan | KeyedPlan,
        dataset: Any,
        seeder: SampleSeeder,
        note: WorkerStatusWriter,
        times: Durations,
    ) -> None:
        """Takes the collaborators; the duration of each sample goes to `times`."""
        self._on_error = spec.on_error
        self._plan = plan
        self._dataset = dataset
        self._get = functools.partial(operator.getitem, dataset)
        self._seeder = seeder
        self._note = note
        self._times = times
        self._bad: list[BadSample] = []

    def first(self, position: Position, rows: int, deadly: Deadly = NOT_DEADLY) -> tuple[int, Any] | None:
        """Returns the first of the batch's `rows` that is not left out, and its sample; None when all are. Raises
        UserCodeError."""
        for each in self._seeded(position, 0, rows, self._get, deadly):
            if type(each[1]) is not LeftOut:
                return each
        return None

    def varies(self, position: Position, deadly: Deadly) -> bool:
        """Return True when the batch's first sample, made twice from the same seed, is not the same."""
        made = []
        for _ in range(2):
            with contextlib.suppress(Exception):
                first = self.first(position, 1, deadly)
                made.append(pickle.dumps(first[1]) if first is not None else b"")
        self._bad.clear()
        return len(set(made)) > 1

    def rows(self, position: Position, first: int, end: int, deadly: Deadly = NOT_DEADLY) -> Iterator[tuple[int, Any]]:
        """Yields rows [first, end) and their samples, a LeftOut where one is left out. An earlier row may come again,
        with those after it: the sample that comes last is the row's. Raises UserCodeError."""
        row = first
        while row < end and self._seeder.seeds_nothing and not deadly:
            row = yield from self._unseeded(position, row, end)
        if row < end:
            yield from self._seeded(position, row, end, self._get, deadly)

    def gathered(self, position: Position, rows: int, deadly: Deadly = NOT_DEADLY) -> Any:
        """Returns all samples of the batch by one call of __getitems__. When that raises, "skip" and "substitute" ask
        for them one by one, as lists of one, each seeded as a sample: then like rows(). Raises UserCodeError."""
        epoch, step = position
        gather = self._dataset.__getitems__
        # A call that is known to end its worker is not made again: samples are then asked for one by one.
        if (ALL_AT_ONCE, 0) not in deadly:
            keys = self._plan.given(epoch, step)
            self._note.phase(LOADING)
            began_ns = time.monotonic_ns()
            try:
                samples = self._seeder.run(self._plan.batch_seed(epoch, step), gather, keys)
            except Exception as error:
                if self._on_error == "raise":
                    raise UserCodeError(f"dataset.__getitems__, epoch {epoch}, step {step}") from error
            else:
                if rows:
                    self._times.add((time.monotonic_ns() - began_ns) // 1000 // rows, rows)
                return samples

        def get(index: int) -> Any:
            (sample,) = gather([index])
            return sample

        return without_left_out(self._seeded(position, 0, rows, get, deadly))

    def indices(self, position: Position, first: int, end: int) -> list[Any]:
        """Returns the keys of rows [first, end)."""
        found: list[Any] = self._plan.rows(*position, first, end).indices.tolist()
        return found

    def take_bad(self) -> list[BadSample]:
        """Returns the bad samples since the last call."""
        found, self._bad = self._bad, []
        return found

    # --- inside ---

    def _seeded(
        self, position: Position, first: int, end: int, get: Callable[[Any], Any], deadly: Deadly
    ) -> Iterator[tuple[int, Any]]:
        """Yields rows and their samples, each made with the generators seeded for it."""
        keys, numbers, seeds = self._planned(position, first, end)
        run, words, now_ns, took = self._seeder.run, self._note.words, time.monotonic_ns, self._times.add
        for row, key, number, seed in zip(range(first, end), keys, numbers, seeds):
            words[ROW] = row
            words[INDEX] = number
            words[SINCE] = since_ns = now_ns()
            try:
                if deadly and (row, 0) in deadly:
                    raise _deadly(key)
                sample = run(seed, get, key)
            except Exception as error:
                sample = self._instead(error, position, row, key, get, deadly)
            took((now_ns() - since_ns) // 1000)
            yield row, sample

    def _unseeded(self, position: Position, first: int, end: int) -> Generator[tuple[int, Any], None, int]:
        """Yields rows and their samples, as rows() does, for as long as nothing draws. Returns the row to go on
        with."""
        keys, numbers, seeds = self._planned(position, first, end)
        seeder, words, now_ns, get = self._seeder, self._note.words, time.monotonic_ns, self._get
        unchecked, check_at_ns = first, now_ns() + CHECK_EVERY_NS
        short, short_ns = 0, 0
        try:
            for row, key, number, seed in zip(range(first, end), keys, numbers, seeds):
                words[ROW] = row
                words[INDEX] = number
                words[SINCE] = since_ns = now_ns()
                seeder.unseeded = seed
                try:
                    sample = get(key)
                except Exception as error:
                    # It may come of numbers that were never seeded for it.
                    if seeder.drew():
                        return self._again_from(unchecked)
                    sample = self._instead(error, position, row, key, get, NOT_DEADLY)
                took_ns = now_ns() - since_ns
                if took_ns < SHORT_NS:
                    short += 1
                    short_ns += took_ns
                else:
                    self._times.add(took_ns // 1000)
                if since_ns > check_at_ns:
                    if seeder.drew():
                        return self._again_from(unchecked)
                    unchecked, check_at_ns = row + 1, since_ns + CHECK_EVERY_NS
                yield row, sample
            return self._again_from(unchecked) if seeder.drew() else end
        finally:
            seeder.unseeded = None
            self._times.add_short(short_ns // 1000, short)

    def _again_from(self, row: int) -> int:
        # Whatever was said of samples from there on is said again.
        self._bad = [bad for bad in self._bad if bad.row < row]
        return row

    def _planned(self, position: Position, first: int, end: int) -> tuple[list[Any], list[int], list[int]]:
        """Returns the rows' keys, the numbers that the status has for them, and their seeds."""
        planned = self._plan.rows(*position, first, end)
        keys: list[Any] = planned.indices.tolist()
        numbers = keys if planned.indices.dtype != object else [numbered(key) for key in keys]
        self._note.phase(LOADING)
        return keys, numbers, planned.seeds.tolist()

    def _instead(
        self, error: Exception, position: Position, row: int, index: Any, get: Callable[[Any], Any], deadly: Deadly
    ) -> Any:
        """Returns what takes the place of a sample that raised. Raises UserCodeError when nothing does."""
        epoch, step = position
        failure = UserCodeError(f"dataset[{shown(index)}], epoch {epoch}, step {step}")
        failure.__cause__ = error
        if self._on_error == "raise":
            raise failure
        own = f"dataset[{shown(index)}] (epoch {epoch}, step {step}, row {row})"
        if self._on_error == "skip":
            self._tell(row, 0, index, f"{own} is left out", error)
            return LeftOut(failure)
        # The own seed for each substitute too: what a row becomes depends on its ordinal alone, whichever sample it has
        # in the end.
        planned = self._plan.rows(epoch, step, row, row + 1)
        ordinal, seed = int(planned.ordinals[0]), int(planned.seeds[0])
        failed = [(0, index, own, error)]
        for attempt in range(1, SUBSTITUTES + 1):
            other = self._plan.substitute(epoch, ordinal, attempt)
            self._note.attempt(attempt, numbered(other))
            try:
                if (row, attempt) in deadly:
                    raise _deadly(other)
                sample = self._seeder.run(seed, get, other)
            except Exception as another:
                failed.append((attempt, other, f"dataset[{shown(other)}]", another))
            else:
                for number, bad, name, why in failed:
                    self._tell(row, number, bad, f"{name} gives way to dataset[{shown(other)}]", why)
                return sample
            finally:
                self._note.attempt(0, numbered(index))
        for number, bad, name, why in failed:
            self._tell(row, number, bad, f"{name} has no substitute", why)
        others = f"so did the {SUBSTITUTES} samples that were to take its place"
        raise UserCodeError(f"{failure.location}; {others}") from error

    def _tell(self, row: int, attempt: int, index: Any, what: str, error: Exception) -> None:
        text = f"{what}: {type(error).__qualname__}: {text_of(error)}"
        self._bad.append(BadSample(row, attempt, _known_again(index), " ".join(text.split())[:TEXT_LIMIT_CHARACTERS]))


def without_left_out(rows: Iterable[tuple[int, Any]]) -> list[Any]:
    """Returns the samples that are not left out, in the order of their rows. Raises the first one's UserCodeError when
    all are."""
    found = list(dict(rows).values())
    left = [sample for sample in found if type(sample) is not LeftOut]
    if found and not left:
        raise found[0].error
    return left


def shown(key: Any) -> str:
    """Returns a sample's key as it stands between brackets; long ones are cut."""
    try:
        text = repr(key)
    except Exception:
        text = f"<{type(key).__qualname__}>"
    return text if len(text) <= KEY_LIMIT_CHARACTERS else f"{text[:KEY_LIMIT_CHARACTERS]}..."


def numbered(key: Any) -> int:
    """Returns `key` where only a number has room: NO_INDEX for all that is no index."""
    return key if type(key) is int and 0 <= key < INDEX_LIMIT else NO_INDEX


def _known_again(key: Any) -> int:
    number = numbered(key)
    return number if number != NO_INDEX else -2 - zlib.crc32(shown(key).encode("utf-8", "replace"))


def _deadly(index: Any) -> WorkerDiedError:
    return WorkerDiedError(f"the workers that asked for dataset[{shown(index)}] died")
