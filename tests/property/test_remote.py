"""Batches that other machines make, under any order of events: none lost, repeated, reordered or torn, and nobody waits
for a machine."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import given

from tests.budgets import tries
from tests.property.remote_world import NODES
from tests.property.test_engine import EngineMachine

# What may happen, and how often compared with the rest. EngineMachine has it all, but comes to other machines seldom.
WEIGHTS = {
    "go_on": 12,
    "on_other_machines": 12,
    "deliver": 4,
    "time_passes": 3,
    "lose_remote_worker": 2,
    "kill_bridge": 1,
    "kill_worker": 1,
    "kill_zygote": 1,
    "next_iterator": 1,
    "break_off": 1,
    "jump": 1,
    "another_trainer": 1,
    "kill_trainer": 1,
    "crash_the_daemon": 1,
    "reconnect": 2,
    "former_workers_die": 1,
    "pause": 1,
    "resume": 2,
    "resize": 1,
    "let_go": 2,
}


class Life:
    """One stream with remote workers, whose events a random number generator chooses."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.machine = machine = EngineMachine()
        odd = {
            (chance.randrange(2), chance.randrange(12)): chance.choice(["deviates", "fails", "large", "kills"])
            for _ in range(chance.randrange(3))
        }
        machine.begin(
            workers=chance.randint(1, 2),
            slots=chance.randint(6, 12),
            by_rows=chance.random() < 0.5,
            odd=odd,
            lookback=chance.choice([0, 0, 2]),
            planned=chance.random() < 0.3,
            forks=chance.choice([None, "small"]),
            remote=chance.randint(1, 3),
            odd_nodes=frozenset(chance.sample(NODES, chance.choice([0, 0, 0, 1, 2]))),
        )
        machine.next_iterator(0, False)

    @property
    def world(self):
        return self.machine.world

    def step(self) -> None:
        name = self.chance.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        machine, world, which = self.machine, self.world, self.chance.randrange(20)
        match name:
            case "go_on":
                self.go_on()
            case "on_other_machines":
                for _ in range(self.chance.randint(1, 6)):
                    if world.remote.steps():
                        world.remote.step(self.chance.randrange(20))
            case "deliver" if world.pending:
                machine.deliver(which)
            case "time_passes":
                machine.time_passes(self.chance.choice([0.3, 0.3, 0.3, 31.0]))
            case "lose_remote_worker" if any(each.workers for each in world.remote.bridges.values()):
                machine.lose_remote_worker(which)
            case "kill_bridge" if world.remote.bridges:
                machine.kill_bridge(which)
            case "kill_worker" if machine.random_kills < 5 and any(each.ready for each in world.workers.values()):
                machine.kill_worker(which)
            case "kill_zygote" if machine.zygote_kills < 2 and world.zygotes():
                machine.kill_zygote(which)
            case "another_trainer" if len(machine.trainers) < 2 and machine.is_of_one_mind():
                machine.another_trainer()
            case "kill_trainer" if len(machine.trainers) > 1:
                machine.kill_trainer(which)
            case "crash_the_daemon" if machine.crashes < 2:
                machine.crash_the_daemon()
            case "former_workers_die" if world.former_workers:
                machine.former_workers_die()
            case "resize" if world.engine.streams:
                machine.resize(which, self.chance.randint(4, 14))
            case "next_iterator":
                machine.next_iterator(which, False)
            case "break_off":
                machine.break_off(which, which)
            case "jump":
                machine.jump(which, self.chance.randrange(3), self.chance.randrange(5))
            case "reconnect":
                machine.reconnect(which)
            case "pause":
                machine.pause(which % 2 == 0)
            case "resume":
                machine.resume()
            case "let_go":
                machine.let_go(which, which)
        machine.every_yield_is_in_order()

    def go_on(self) -> None:
        """The trainers go on, and so does what they wait for."""
        machine, world, chance = self.machine, self.world, self.chance
        if not any(not each.waiting for trainer in machine.trainers for each in trainer.cursors.values()):
            machine.next_iterator(0, False)
        for _ in range(chance.randint(1, 6)):
            if world.pending:
                world.deliver(0)
            if any(planner.messages for planner in world.planners.values()):
                world.plan()
            if any(worker.tasks for worker in world.workers.values()):
                world.work(chance.randrange(4))
            machine.next_batch(chance.randrange(2), chance.randrange(3), chance.random() < 0.3)
        if chance.random() < 0.4:
            machine.wait(chance.randrange(2), chance.randrange(3))
            machine.time_passes(0.3)


@given(st.integers(0, 1 << 60))
@tries(200)
def test_whatever_happens_elsewhere_every_batch_comes_whole_and_in_its_turn(seed):
    life = Life(random.Random(seed))
    for _ in range(60):
        life.step()
    life.machine.teardown()


def test_other_machines_take_part_in_that():
    made = compared = taken_back = 0
    for seed in range(120):
        life = Life(random.Random(seed))
        for _ in range(60):
            life.step()
        made += life.world.remote.made
        compared += life.world.remote.compared
        taken_back += life.world.remote.taken_back
    assert made > 50
    assert compared > 20
    assert taken_back > 1
