"""Every order of events in a small world, and a death in every world that there is: 4 slots, 2 workers, 2 cursors.

Breadth first over worlds that can be told apart. World.check and the trainers' own checks hold in each of them, and
from where a walk stops everybody comes to the end of the epoch. The first test goes through all worlds without a
death; in each the daemon, each worker, the zygote, each trainer and each connection dies once. In the second one
deaths are events like others. PREFETCHD_WALK=N makes each walk go through N worlds (0: all that there are).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

import pytest

from prefetchd.wire.messages import MEASURE
from prefetchd.wire.stream_spec import StreamSpec
from tests.budgets import budget
from tests.property.copying import FIRST_GENERATION, FIRST_TASK, freeze, identity, thaw
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 4, 2)  # 2 steps an epoch, of 2 rows each

WORLDS_WITHOUT_A_DEATH = {1: 100, 2: 600}
"""By the number of trainers."""
WORLDS_WITH_DEATHS = 80
ITERATORS = 2
"""How many all trainers together begin."""


class Walker:
    """A world with its trainers, and all that may happen in it next."""

    def __init__(self, trainers: int, by_rows: bool) -> None:
        self.world = World(workers=2, slots=4, by_rows=by_rows)
        self.trainers = [self.join() for _ in range(trainers)]
        # How often each may still die.
        self.left = dict.fromkeys(["daemon", "worker", "zygote", "trainer", "connection", "loader"], 0)
        self.closed: list = []
        self.cursors = 0
        for trainer in self.trainers:
            self.place(trainer, 0, 0)
            self.begin(trainer)

    def join(self):
        trainer = self.world.join(SPEC, shared=True)
        trainer.begun = 0
        return trainer

    def place(self, trainer, epoch, step):
        self.cursors += 1
        trainer.place(self.cursors, epoch, step, True)

    def begin(self, trainer):
        """The waiting cursor's iterator begins."""
        waiting = next(each for each in trainer.cursors.values() if each.waiting)
        trainer.begun += 1
        trainer.activate(waiting.number)
        self.place(trainer, waiting.epoch + 1, 0)

    def warm_up(self):
        """Until workers and ring are there and nothing was claimed in it yet; numbers that only grow begin high."""
        while self.world.pending:
            self.world.deliver(0)
            for stream in self.world.engine.streams.values():
                ring = stream.window.ring
                if ring is not None and ring._next_generation < FIRST_GENERATION:
                    ring._next_generation = FIRST_GENERATION
            if self.world.engine.pool._next_task < FIRST_TASK:
                self.world.engine.pool._next_task = FIRST_TASK
            tasks = [task for worker in self.world.workers.values() for task in worker.tasks]
            if not self.world.pending and tasks and tasks[0].kind == MEASURE:
                self.world.work(0)
        return self

    # --- what may happen ---

    def events(self) -> list[tuple]:
        world = self.world
        found: list[tuple] = [("deliver", place) for place in range(len(world.pending))]
        found += [("work", place) for place, _ in enumerate(w for w in world.workers.values() if w.tasks)]
        if world.former_workers:
            found += [("former_work", place) for place, (each, *_) in enumerate(world.former_workers) if each.tasks]
            found.append(("former_workers_die",))
        for number, trainer in enumerate(self.trainers):
            found += self.events_of(number, trainer)
        found += [("let_go_after_close", place) for place in range(len(self.closed))]
        if self.left["daemon"]:
            found.append(("crash",))
        if self.left["worker"]:
            found += [("kill_worker", place) for place, _ in enumerate(w for w in world.workers.values() if w.ready)]
        if self.left["zygote"]:
            found += [("kill_zygote", place) for place, _ in enumerate(world.zygotes())]
        return found

    def events_of(self, number, trainer) -> list[tuple]:
        found: list[tuple] = []
        for cursor in trainer.cursors.values():
            if cursor.waiting:
                if trainer.begun < ITERATORS // len(self.trainers):
                    found.append(("begin", number))
            elif trainer.can_next(cursor.number):
                found += [
                    ("next", number, cursor.number, hold) for hold in (False, True) if not (hold and trainer.held)
                ]
            elif cursor.ended_at == cursor.step:
                found.append(("close", number, cursor.number))
            elif trainer.connected and not self.is_blocked(trainer, cursor.number):
                found.append(("wait", number, cursor.number))
        if trainer.held:
            found.append(("let_go", number))
        if not trainer.connected:
            found.append(("reconnect", number))
        elif self.left["connection"]:
            found.append(("cut_off", number))
        if self.left["trainer"]:
            found.append(("kill_trainer", number))
        if self.left["loader"]:
            found.append(("close_loader", number))
        return found

    def is_blocked(self, trainer, cursor) -> bool:
        cursors = self.world.engine.streams[trainer.stream].window.cursors
        return cursors[(trainer.session, cursor)].blocked

    # --- what happens ---

    def happen(self, event: tuple) -> None:
        name, *arguments = event
        if hasattr(self, f"_{name}"):
            getattr(self, f"_{name}")(*arguments)
        else:
            getattr(self.world, name)(*arguments)

    def _begin(self, number):
        self.begin(self.trainers[number])

    def _next(self, number, cursor, hold):
        self.trainers[number].next(cursor, hold)

    def _wait(self, number, cursor):
        self.trainers[number].wait(cursor)

    def _close(self, number, cursor):
        self.trainers[number].close(cursor)

    def _let_go(self, number):
        self.trainers[number].let_go(0)
        self.trainers[number].flush()

    def _reconnect(self, number):
        self.world.reconnect(self.trainers[number])

    def _cut_off(self, number):
        self.left["connection"] -= 1
        self.world.cut_off(self.trainers[number])

    def _crash(self):
        self.left["daemon"] -= 1
        self.world.crash()

    def _kill_worker(self, place):
        self.left["worker"] -= 1
        self.world.kill_worker(place)

    def _kill_zygote(self, place):
        self.left["zygote"] -= 1
        self.world.kill_zygote(place)

    def _kill_trainer(self, number):
        """And another resumes where it stood."""
        self.left["trainer"] -= 1
        former = self.trainers[number]
        stood = where(former)
        self.world.kill(former)
        self.resume(number, stood)

    def _close_loader(self, number):
        """What it handed out is held on, and another loader goes on where it stood."""
        self.left["loader"] -= 1
        former = self.trainers[number]
        stood = where(former)
        self.world.goodbye(former)
        if former.held:
            self.closed.append(former)
        else:
            self.world.kill(former)
        self.resume(number, stood)

    def _let_go_after_close(self, place):
        former = self.closed.pop(place)
        while former.held:
            former.let_go(0)
        self.world.kill(former)

    def resume(self, number, position):
        self.trainers[number] = trainer = self.join()
        self.place(trainer, *position)
        self.begin(trainer)

    # --- the end ---

    def finish(self, late: bool) -> None:
        """Everybody comes to the end of its epoch, whatever it holds. With `late`, a dead daemon's workers write all
        that they were given when the next one has made what it can."""
        world = self.world
        if not late:
            world.former_workers_die()
        for trainer in self.trainers:
            if not trainer.connected:
                world.reconnect(trainer)
        if late:
            # As long as they live their slots are missing: what is ready may have to give way.
            world.kept.clear()
            world.come_to_rest()
            for place, (worker, *_) in enumerate(world.former_workers):
                while worker.tasks:
                    world.former_work(place)
            world.former_workers_die()
        for trainer in self.trainers:
            assert trainer.failed is None, trainer.failed
            for cursor in [each for each in trainer.cursors.values() if not each.waiting]:
                while cursor.ended_at != cursor.step:
                    if not trainer.can_next(cursor.number):
                        trainer.wait(cursor.number)
                        world.come_to_rest()
                    assert trainer.can_next(cursor.number) or cursor.ended_at == cursor.step, f"stuck: {cursor}"
                    if trainer.can_next(cursor.number):
                        trainer.next(cursor.number, hold=True)


def where(trainer) -> tuple[int, int]:
    return min((cursor.epoch, cursor.step) for cursor in trainer.cursors.values())


def walk(begin: Walker, most: int, visit: Callable[[bytes, tuple], None]) -> bool:
    """visit(frozen world, the way to it) for up to `most` worlds (0: all); True when these were all."""
    seen = {identity(begin)}
    queue: deque[tuple[bytes, tuple]] = deque([(freeze(begin), ())])
    visited = 0
    while queue and (not most or visited < most):
        frozen, way = queue.popleft()
        visited += 1
        visit(frozen, way)
        for event in thaw(frozen).events():
            walker = after(frozen, way, event)
            which = identity(walker)
            if which not in seen:
                seen.add(which)
                queue.append((freeze(walker), (*way, event)))
    for frozen, way in queue:
        finish(thaw(frozen), way)
    print(f"{visited} worlds, up to {len(way)} events; {len(queue)} more were seen and not walked on from")
    return not queue


def after(frozen: bytes, way: tuple, event: tuple) -> Walker:
    walker = thaw(frozen)
    try:
        walker.happen(event)
    except Exception as error:
        raise AssertionError(f"after {[*way, event]}") from error
    return walker


def finish(walker: Walker, way: tuple, *, late: bool = False) -> None:
    try:
        walker.finish(late)
    except Exception as error:
        raise AssertionError(f"no end after {list(way)}, late: {late}") from error


def most(default: int) -> int:
    return int(os.environ.get("PREFETCHD_WALK", budget(default)))


@pytest.mark.parametrize("by_rows", [True, False], ids=["by rows", "whole"])
@pytest.mark.parametrize("trainers", [1, 2])
@pytest.mark.timeout(600)
def test_a_death_in_every_world(trainers, by_rows):
    def die(frozen, way):
        without = set(thaw(frozen).events())
        mortal = thaw(frozen)
        mortal.left = dict.fromkeys(mortal.left, 1)
        frozen = freeze(mortal)
        for event in mortal.events():
            if event not in without:
                finish(after(frozen, way, event), (*way, event))
                if event == ("crash",):
                    finish(after(frozen, way, event), (*way, event), late=True)

    worlds = most(WORLDS_WITHOUT_A_DEATH[trainers])
    were_all = walk(Walker(trainers, by_rows).warm_up(), worlds, die)
    assert were_all or worlds


@pytest.mark.parametrize("who", ["daemon", "worker", "zygote", "trainer", "connection", "loader and daemon"])
@pytest.mark.parametrize("by_rows", [True, False], ids=["by rows", "whole"])
def test_every_order_of_events_with_a_death_among_them(by_rows, who):
    walker = Walker(1 if "loader" in who else 2, by_rows).warm_up()
    for each in who.split(" and "):
        walker.left[each] = 1
    walk(walker, most(WORLDS_WITH_DEATHS), lambda frozen, way: None)
