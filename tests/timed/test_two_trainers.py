"""Two trainers of all kinds on one daemon: neither has less than nine tenths of a fair split of what it has alone.

Counts are compared with counts of the same minute. A machine that has other work may spoil any of them: what holds in
one of ROUNDS rounds was not the daemon's doing in the others; a trainer that starves does so in each. And where nobody
is bound the kernel may keep three of four workers on one of two CPUs for a round: that evens out over several.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import daemon_aside
from tests.scenario.waiting import stream_when
from tests.timed.racing_trainer import KINDS

ROUNDS = 8
FAIR = 0.9 / 2
HICCUP_MS = 1000
"""What a machine that has other work may keep a process from."""
WAITS_IN_BATCHES = 4
"""How many batches of all who take some at once, as they come then, one may wait for."""
PAIRS = list(itertools.combinations_with_replacement(KINDS, 2))

BOUND_PAIRS = [
    ("sleeping", "cheap"),
    ("sleeping", "iterable"),
    ("computing", "huge"),
    ("computing", "iterable"),
    ("cheap", "iterable"),
]
"""Those of which one keeps its workers for longer than the other."""


class Trainer:
    """A process of its own that does what it is told."""

    def __init__(self, daemon, name: str) -> None:
        command = [sys.executable, "-m", "tests.timed.racing_trainer", str(daemon.socket), name]
        root = Path(__file__).parents[2]
        self.alone: dict[tuple[str, float], int] = {}
        """By kind and seconds, what it has taken with nobody beside it, when that was counted last."""
        self._opened: set[str] = set()
        self._process = subprocess.Popen(
            command, env=daemon.environment, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, *words: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(words)}\n")
        self._process.stdin.flush()

    def answer(self):
        assert self._process.stdout is not None
        (found,) = json.loads(self._process.stdout.readline())
        return found

    def open(self, kind: str, marks: str = "") -> None:
        if kind not in self._opened:
            self._opened.add(kind)
            self.tell("open", kind, marks)
            self.answer()

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.communicate(timeout=30)

    def kill(self) -> None:
        """Also while it takes batches."""
        self._process.kill()


@contextlib.contextmanager
def two_trainers(daemon) -> Iterator[tuple[Trainer, Trainer]]:
    with contextlib.ExitStack() as ending:
        found = Trainer(daemon, "one"), Trainer(daemon, "two")
        for trainer in found:
            ending.callback(trainer.close)
        yield found


def counts(*taking: tuple[Trainer, str], seconds: float = 0.7, every_s: float = 0.0) -> list[int]:
    """What these trainers take at once. In whichever round that is, fair or not, none of them waits for one batch for
    as long as a daemon that freezes would have it."""
    for trainer, kind in taking:
        trainer.tell("take", kind, seconds, every_s if trainer is taking[-1][0] else 0.0)
    answers = [trainer.answer() for trainer, _ in taking]
    batches_ms = sum(1000 * seconds / count for count, _ in answers if count)
    for (_, kind), (_, longest_ms) in zip(taking, answers):
        told = f"{kind} waited for {longest_ms} ms; counts and longest waits: {answers}"
        assert longest_ms < HICCUP_MS + WAITS_IN_BATCHES * batches_ms, told
    return [count for count, _ in answers]


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[tuple[Trainer, Trainer]]:
    """Two trainers on a daemon without a bound. Loaders stay open: at rest their rings are full."""
    with daemon_aside(tmp_path_factory.mktemp("free")) as daemon:
        daemon.start()
        with two_trainers(daemon) as found:
            yield found


@pytest.fixture(scope="module")
def bound_pair(tmp_path_factory) -> Iterator[tuple[Trainer, Trainer]]:
    """The same where one worker may be busy."""
    with daemon_aside(tmp_path_factory.mktemp("bound")) as daemon:
        daemon.start("--workers", "1")
        with pytest.MonkeyPatch.context() as patch, two_trainers(daemon) as found:
            patch.setenv("PYTHONWARNINGS", "ignore")
            yield found


def is_fair(beside: list[int], alone: list[int]) -> bool:
    return all(count >= FAIR * most for count, most in zip(beside, alone))


def each_has_a_fair_part(one: Trainer, other: Trainer, kinds: tuple[str, str]) -> None:
    """In one of the rounds, or in all so far together."""
    pair, found = [*zip((one, other), kinds)], []
    # Of a sleeping one there are a dozen batches a second: in a short round one more or less decides.
    seconds = 2.8 if "sleeping" in kinds else 0.7
    all_alone, all_beside = [0, 0], [0, 0]
    for trainer, kind in pair:
        trainer.open(kind)
    for number in range(ROUNDS):
        for trainer, kind in pair:
            if number or (kind, seconds) not in trainer.alone:
                (trainer.alone[kind, seconds],) = counts((trainer, kind), seconds=seconds)
        alone = [trainer.alone[kind, seconds] for trainer, kind in pair]
        beside = counts(*pair, seconds=seconds)
        found.append((alone, beside))
        all_alone = [sum(both) for both in zip(all_alone, alone)]
        all_beside = [sum(both) for both in zip(all_beside, beside)]
        if is_fair(beside, alone) or is_fair(all_beside, all_alone):
            return
    raise AssertionError(f"batches of both, each alone and beside the other: {found}")


@pytest.mark.parametrize("kinds", PAIRS, ids="-".join)
def test_each_of_two_trainers_has_a_fair_part(pair, kinds):
    each_has_a_fair_part(*pair, kinds)


@pytest.mark.parametrize("kinds", BOUND_PAIRS, ids="-".join)
def test_each_of_two_trainers_has_a_fair_part_of_one_worker(bound_pair, kinds):
    each_has_a_fair_part(*bound_pair, kinds)


@pytest.mark.parametrize("trainers", ["pair", "bound_pair"])
@pytest.mark.parametrize("kind", ["sleeping", "computing"])
def test_one_that_wants_little_has_all_of_it(request, trainers, kind):
    """Found as 0.1 batches/s of five, beside a trainer whose samples sleep."""
    one, other = request.getfixturevalue(trainers)
    one.open(kind)
    other.open("cheap")
    found = []
    for _ in range(ROUNDS):
        (alone,) = counts((other, "cheap"), seconds=1.0, every_s=0.05)
        _, beside = counts((one, kind), (other, "cheap"), seconds=1.0, every_s=0.05)
        found.append((alone, beside))
        if beside >= 0.9 * alone:
            return
    raise AssertionError(f"batches alone and beside the other: {found}")


@pytest.mark.parametrize("workers", [None, 1])
def test_the_first_batch_of_one_that_comes_late_waits_for_one_task(tmp_path, workers):
    """Counted in tasks of the other that begin between its first worker's start and its first batch's last sample: one
    may while the daemon hears of the worker, and one in a queue."""
    marks = tmp_path / "marks"
    with daemon_aside(tmp_path) as daemon:
        daemon.start(*(["--workers", str(workers)] if workers else []))
        with two_trainers(daemon) as (one, other):
            one.open("long", str(marks))
            stream_when(daemon, "one long", lambda stream: stream["produced_batches"] > 3)
            before = len(marks.read_text())
            one.tell("take", "long", 60.0, 0.0)
            other.open("cheap", str(marks))
            seen = marks.read_text()[before:]
            one.kill()
            since = seen[seen.index("!") :]
            first_batch = [place for place, letter in enumerate(since) if letter == "t"][15]
            assert since[:first_batch].count("o") <= (2 if workers else 4)
