"""Streams that share a bounded number of workers: each gets its part of their time, whatever its tasks take.

The bound of what non-preemptive tasks allow, and the rules, are those of prefetchd.daemon.engine.fairness; each rule by
itself is in tests/unit/daemon/engine/test_fairness.py.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from prefetchd.daemon.engine.fairness import PRICE_OF_PLENTY
from prefetchd.daemon.engine.stream.supply import FEW_AHEAD, REMEMBERED, Pace
from prefetchd.daemon.engine.stream.task_sizes import LONG_PIECE_S
from prefetchd.wire.stream_spec import StreamSpec
from tests.budgets import tries
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 300_000, 3)
TICK_S = 0.25
SHARDS = 4
FOR_EVER = float("inf")


@dataclasses.dataclass(frozen=True)
class Kind:
    """A trainer. Its batches are made `whole` by one task of `task_s`, or by rows of `task_s` each; those of an
    `iterable` each by the worker of its shard, in `task_s`. It takes a batch as soon as it is there, or every
    `every_s`; in bursts of `burst` batches every `pause_s`; or, if it `looks_on`, none at all. It comes at `begin_s`
    and goes at `end_s`."""

    task_s: float
    whole: bool = False
    iterable: bool = False
    every_s: float = 0.0
    burst: int = 0
    pause_s: float = 0.0
    looks_on: bool = False
    begin_s: float = 0.0
    end_s: float = FOR_EVER

    def takes_s(self, rows: int) -> float:
        """How long a task of so many rows takes."""
        return self.task_s if self.whole or self.iterable else self.task_s * max(1, rows)

    @property
    def longest_s(self) -> float:
        """How long its longest task takes."""
        return self.takes_s(SPEC.batch_size)

    @property
    def wants(self) -> float:
        """Workers that it would keep busy, if each of its batches is one task."""
        return self.task_s / self.every_s if self.every_s else FOR_EVER


class Race:
    """Trainers on one engine whose workers take as long as they are told to."""

    def __init__(self, limit: int, kinds: list[Kind], slots: int = 16) -> None:
        self.limit = limit
        self.kinds = kinds
        self.world = World(limit, slots, shards=[10**6] * SHARDS)
        self.world.task_us = lambda stream, rows: int(1e6 * self._kind(stream).takes_s(rows))
        self.world.is_by_rows = lambda stream: not (self._kind(stream).whole or self._kind(stream).iterable)
        self.world.check = lambda: None  # other tests look at every slot after every event
        self.trainers: dict[int, object] = {}
        self.gone: set[int] = set()
        self.began: dict[int, float] = {}
        # Of each trainer: when a worker began and ended a task of it; when it took a batch.
        self.spans: list[list[tuple[float, float]]] = [[] for _ in kinds]
        self.taken: list[list[float]] = [[] for _ in kinds]

    def _kind(self, stream: int) -> Kind:
        return self.kinds[self._number(stream)]

    def _number(self, stream: int) -> int:
        return int(self.world.engine.streams[stream].name)

    def _join(self, number: int) -> None:
        iterable = self.kinds[number].iterable
        spec = dataclasses.replace(
            SPEC,
            fingerprint=f"{number:032x}",
            order="iterable" if iterable else SPEC.order,
            logical_shards=SHARDS if iterable else 0,
        )
        trainer = self.world.join(spec, name=str(number))
        self.trainers[number] = trainer
        trainer.place(1, 0, 0, False)

    def _leave(self, number: int) -> None:
        self.gone.add(number)
        self.world.goodbye(self.trainers[number])
        self.world.kill(self.trainers[number])

    def _takes_at(self, number: int) -> float:
        """When the trainer would take its next batch."""
        kind, taken = self.kinds[number], self.taken[number]
        if kind.looks_on:
            return FOR_EVER
        if not taken:
            return 0.0
        if kind.burst:
            return taken[-1] if len(taken) % kind.burst else taken[-1] + kind.pause_s
        return taken[-1] + kind.every_s

    def _deliver_all(self) -> None:
        """All that takes no time."""
        world = self.world
        moved = True
        while moved:
            moved = bool(world.pending)
            while world.pending:
                world.deliver(0)
            for number, trainer in self.trainers.items():
                if number in self.gone:
                    continue
                while self._takes_at(number) <= world.now + 1e-9 and trainer.can_next(1):
                    trainer.next(1, hold=False)
                    self.taken[number].append(world.now)
                    moved = True
                if (
                    self._takes_at(number) <= world.now + 1e-9
                    and not world.engine.stream_of(trainer.session).window.cursors[trainer.session, 1].blocked
                ):
                    trainer.wait(1)
                trainer.flush()
        for worker in world.workers.values():
            if worker.tasks:
                self.began.setdefault(worker.number, world.now)

    def _ends_at(self, worker) -> float:
        task = worker.tasks[0]
        return self.began[worker.number] + self._kind(worker.stream).takes_s(task.end - task.first)

    def run(self, until_s: float) -> Race:
        world, next_tick_s = self.world, TICK_S
        while True:
            here = [number for number in self.trainers if number not in self.gone]
            at_work = [each for each in world.workers.values() if each.number in self.began]
            coming = [each.begin_s for number, each in enumerate(self.kinds) if number not in self.trainers]
            going = [self.kinds[number].end_s for number in here]
            takes = [at for number in here if (at := self._takes_at(number)) > world.now + 1e-9]
            world.now = min([*map(self._ends_at, at_work), *coming, *going, *takes, next_tick_s, until_s])
            if world.now >= until_s:
                for worker in at_work:
                    self.spans[self._number(worker.stream)].append((self.began[worker.number], until_s))
                return self
            if world.now >= next_tick_s:
                next_tick_s += TICK_S
                world.tick()
            for number, kind in enumerate(self.kinds):
                if number not in self.trainers and kind.begin_s <= world.now:
                    self._join(number)
                elif number in self.trainers and number not in self.gone and kind.end_s <= world.now:
                    self._leave(number)
            for worker in [each for each in at_work if self._ends_at(each) <= world.now + 1e-9]:
                if worker.number in world.workers:
                    self.spans[self._number(worker.stream)].append((self.began.pop(worker.number), world.now))
                    busy = [each for each in world.workers.values() if each.tasks]
                    world.work(busy.index(worker))
                    if worker.tasks:
                        self.began[worker.number] = world.now
            self._deliver_all()

    # --- what came of it ---

    def had(self, number: int) -> Had:
        return Had(self.spans[number])

    def batches(self, number: int, begin_s: float, end_s: float) -> int:
        taken = self.taken[number]
        return bisect.bisect_left(taken, end_s) - bisect.bisect_left(taken, begin_s)

    def fair_s(self, begin_s: float, end_s: float) -> float:
        """Worker seconds that a fair split gives each trainer that is there: all of them may want as many."""
        changes = [at for each in self.kinds for at in (each.begin_s, each.end_s) if begin_s < at < end_s]
        found = 0.0
        for since_s, until_s in itertools.pairwise(sorted([begin_s, *changes, end_s])):
            here = sum(each.begin_s <= since_s and each.end_s >= until_s for each in self.kinds)
            found += self.limit * (until_s - since_s) / here
        return found

    def uninterrupted_s(self, number: int) -> float:
        """Worker seconds that tasks which are not interrupted may cost a trainer, over any time (invariant a)."""
        tasks = [each.longest_s for each in self.kinds]
        # Of short ones a worker has the next in its queue.
        under_way = self.limit * (2 if min(tasks) <= LONG_PIECE_S else 1)
        return (under_way + 1) * (tasks[number] + max(tasks)) * (len(tasks) - 1) / len(tasks)


class Had:
    """Worker seconds of one trainer, up to any time."""

    def __init__(self, spans: list[tuple[float, float]]) -> None:
        changes = sorted([(at, 1) for at, _ in spans] + [(at, -1) for _, at in spans])
        self._at, self._total, self._busy = [0.0], [0.0], [0]
        for at, change in changes:
            self._total.append(self._total[-1] + self._busy[-1] * (at - self._at[-1]))
            self._at.append(at)
            self._busy.append(self._busy[-1] + change)

    def until(self, now_s: float) -> float:
        place = bisect.bisect_right(self._at, now_s) - 1
        return self._total[place] + self._busy[place] * (now_s - self._at[place])

    def within(self, begin_s: float, end_s: float) -> float:
        return self.until(end_s) - self.until(begin_s)


def windows(begin_s: float, end_s: float, length_s: float) -> list[tuple[float, float]]:
    """Of that length, one beginning every tenth of it."""
    step_s = length_s / 10
    count = int((end_s - begin_s - length_s) // step_s) + 1
    return [(begin_s + each * step_s, begin_s + each * step_s + length_s) for each in range(count)]


def kinds(*task_s: float, whole: bool = True, **others) -> st.SearchStrategy[Kind]:
    return st.builds(
        Kind,
        task_s=st.sampled_from(task_s),
        whole=st.just(True) if whole else st.booleans(),
        **{name: st.sampled_from(values) for name, values in others.items()},
    )


HUNGRY = kinds(0.005, 0.03, 0.07, 0.3, 2.0, whole=False, iterable=[False, False, True])


# --- invariant a: fair ---


@given(limit=st.integers(1, 4), trainers=st.lists(HUNGRY, min_size=2, max_size=4))
@tries(12)
def test_over_any_time_each_has_a_fair_part_of_the_workers(limit, trainers):
    """But for what tasks allow that are not interrupted. Where that is a tenth of it: nine tenths of a fair part."""
    race = Race(limit, trainers)
    share = limit / len(trainers)
    longest_s = max(each.longest_s for each in trainers)
    until_s = min(30 * longest_s / share, 2000 * min(each.task_s for each in trainers) / share)
    race.run(until_s)
    begin_s = max(taken[0] for taken in race.taken if taken)
    for number in range(len(trainers)):
        had, allowed_s = race.had(number), race.uninterrupted_s(number)
        for length_s in (1.0, 5.0, 10 * allowed_s / share):
            for window in windows(begin_s, until_s, length_s):
                assert had.within(*window) >= share * length_s - allowed_s, (number, window)


def test_over_any_second_each_has_nine_tenths_of_a_fair_part_where_tasks_are_short():
    trainers = [Kind(0.002), Kind(0.005, whole=True), Kind(0.01, iterable=True)]
    race = Race(2, trainers).run(12.0)
    for number in range(3):
        had = race.had(number)
        assert min(had.within(*each) for each in windows(1.0, 12.0, 1.0)) >= 0.9 * 2 / 3


LIKE_RACING_TRAINERS = {
    "sleeping": Kind(0.02),
    "computing": Kind(0.004),
    "cheap": Kind(0.002, whole=True),
    "huge": Kind(0.01, whole=True),
    "iterable": Kind(0.008, iterable=True),
}
"""As tests/timed/racing_trainer.py has them, but that cheap tasks take longer: there would be too many of them."""


@functools.cache
def batches_alone(limit: int, kind: Kind, since_s: float, until_s: float) -> int:
    """What a trainer takes with nobody beside it."""
    return Race(limit, [kind]).run(until_s).batches(0, since_s, until_s)


PAIRS = list(itertools.combinations_with_replacement(LIKE_RACING_TRAINERS, 2))


@pytest.mark.parametrize("limit", [1, 2])
@pytest.mark.parametrize("names", PAIRS, ids="-".join)
def test_in_any_second_each_of_two_takes_nine_tenths_of_half_of_what_it_takes_alone(limit, names):
    until_s, since_s = 3.0, 1.0
    pair = [LIKE_RACING_TRAINERS[name] for name in names]
    beside = Race(limit, pair).run(until_s)
    for number, kind in enumerate(pair):
        alone = batches_alone(limit, kind, since_s, until_s) / (until_s - since_s)
        for window in windows(since_s, until_s, 1.0):
            assert beside.batches(number, *window) >= int(0.9 * alone / 2), (names[number], window)


@given(
    limit=st.integers(1, 3),
    stays=st.lists(st.tuples(st.floats(0, 15), st.floats(2, 30)), min_size=1, max_size=4),
    trainers=st.lists(kinds(0.03, 0.07, 0.3, whole=False, iterable=[False, True]), min_size=5, max_size=5),
)
@tries(12)
def test_trainers_that_come_and_go_take_no_more_than_their_parts(limit, stays, trainers):
    until_s = 20.0
    came = [dataclasses.replace(each, begin_s=at, end_s=at + stay) for each, (at, stay) in zip(trainers[1:], stays)]
    race = Race(limit, [trainers[0], *came]).run(until_s)
    for number, kind in enumerate(race.kinds):
        if not race.taken[number]:
            continue
        had, allowed_s = race.had(number), race.uninterrupted_s(number)
        for length_s in (1.0, 5.0):
            for window in windows(race.taken[number][0], min(kind.end_s, until_s), length_s):
                assert had.within(*window) >= race.fair_s(*window) - allowed_s, (number, window)


def fair_parts(wanted: list[float], workers: float) -> list[float]:
    """Whoever wants less than a fair part has that, and the others share the rest (max-min fairness)."""
    parts, left = [0.0] * len(wanted), dict(enumerate(wanted))
    while left:
        share, least = workers / len(left), min(left, key=left.__getitem__)
        if left[least] > share:
            return [share if number in left else part for number, part in enumerate(parts)]
        parts[least] = left.pop(least)
        workers -= parts[least]
    return parts


@given(
    limit=st.integers(1, 3),
    slots=st.sampled_from([8, 64]),
    trainers=st.lists(kinds(0.01, 0.03, 0.07, 0.3, every_s=[0.0, 0.02, 0.05, 0.2, 1.0]), min_size=2, max_size=4),
)
@tries(10)
@example(limit=3, slots=8, trainers=[Kind(0.01, whole=True, every_s=0.02), Kind(0.3, whole=True)])
def test_whoever_wants_less_than_a_fair_part_gets_it_and_others_share_the_rest(limit, slots, trainers):
    """Also a trainer whose batches are ready now and then: it may need its part all the same. Only what its ring holds
    can it have while tasks of others, which nobody interrupts, take all workers."""
    begin_s, until_s = 5.0, 25.0
    race = Race(limit, trainers, slots).run(until_s)
    for number, part in enumerate(fair_parts([min(limit, each.wants) for each in trainers], limit)):
        longest_s = max(each.task_s for each in trainers if each is not trainers[number])
        turnover = slots * (until_s - begin_s) / longest_s
        fair = min(part * (until_s - begin_s) / trainers[number].task_s, turnover)
        allowed = race.uninterrupted_s(number) / trainers[number].task_s
        assert race.batches(number, begin_s, until_s) >= 0.9 * fair - allowed - 1, (number, part)


def test_bursts_find_what_was_made_between_them():
    """Twenty batches, 1.4 worker seconds, every 6 s, beside one that takes all that it gets. What a burst is, the first
    two show."""
    race = Race(1, [Kind(0.07, True, burst=20, pause_s=6.0), Kind(0.07, True)], slots=64).run(60.0)
    ends = race.taken[0][19::20]
    waits = [end - begin for begin, end in zip(race.taken[0][20::20], ends[1:])]
    assert len(waits) > 5
    assert max(waits[1:]) == pytest.approx(0.0, abs=1e-6)


# --- invariants b and c: by need, and nobody starves ---


@given(
    limit=st.integers(1, 3),
    hungry_s=st.sampled_from([0.01, 0.03, 0.07, 0.3]),
    hoarder_s=st.sampled_from([0.01, 0.03, 0.07, 0.3]),
    every_s=st.sampled_from([0.0, 2.0]),
)
@tries(10)
def test_a_ring_that_is_filled_for_later_takes_little_beside_a_trainer_that_waits(limit, hungry_s, hoarder_s, every_s):
    """Found as half of the workers' time for a ring of 1 GiB with hundreds ready, beside a next() that waited."""
    hoarder = Kind(hoarder_s, whole=True, every_s=every_s, looks_on=not every_s)
    race = Race(limit, [Kind(hungry_s, whole=True), hoarder], slots=4000)
    # Its first batches, of which a few are few.
    begin_s = 3 * (FEW_AHEAD + 1) * (hoarder_s + hungry_s) + 1
    until_s = begin_s + 20.0
    race.run(until_s)
    one, other = (race.had(number).within(begin_s, until_s) for number in (0, 1))
    allowed_s = race.uninterrupted_s(1)
    assert other <= one / PRICE_OF_PLENTY + allowed_s + (hoarder_s * 20 / every_s if every_s else 0)
    assert other >= one / PRICE_OF_PLENTY - allowed_s


# --- invariant d: one that comes late ---


@given(
    slow_s=st.sampled_from([0.05, 0.2, 0.5, 2.0]),
    cheap=st.sampled_from([0.02, 0.2]),
    limit=st.integers(1, 3),
    late=st.floats(0, 3),
    whole=st.booleans(),
    hours=st.booleans(),
)
@tries(40)
def test_one_that_comes_late_waits_for_one_task_of_the_others(slow_s, cheap, limit, late, whole, hours):
    """Found as a first batch after 33 s: whoever always waited went first."""
    at, cheap_s = (late + 30 * hours) * slow_s, cheap * slow_s
    race = Race(limit, [Kind(slow_s, True), Kind(cheap_s, whole, begin_s=at)])
    race.run(at + 10 * slow_s)
    # What a worker has by then.
    queued_s = slow_s * (1 if slow_s > LONG_PIECE_S else 2)
    # Its own rows: three are measured, and made.
    assert race.taken[1][0] <= at + queued_s + 2 * SPEC.batch_size * cheap_s + 1e-6


# --- pace ---


@given(st.lists(st.tuples(st.floats(0, 3), st.integers(1, 50)), max_size=30))
def test_a_consumers_pace_is_the_most_that_it_took_in_a_second_and_fades(taken):
    pace, now_s, seconds = Pace(), 100.0, {}
    for after_s, batches in taken:
        now_s += after_s
        pace.took(batches, now_s)
        seconds[int(now_s)] = seconds.get(int(now_s), 0) + batches
    for later_s in (0.0, 0.5, 3.0):
        last = int(now_s + later_s)
        most = max((count * REMEMBERED ** max(0, last - at - 1) for at, count in seconds.items()), default=0.0)
        assert pace.lately(now_s + later_s) <= most * 1.0001
        assert pace.lately(now_s + later_s) >= most * REMEMBERED * 0.9999
