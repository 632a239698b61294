"""The engine under any order of events: one owner a slot, nothing lost, repeated, reordered or torn, no deadlock."""

from __future__ import annotations

import dataclasses
import itertools

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from prefetchd.wire.stream_spec import StreamSpec
from tests.budgets import tries
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "shuffle", 13, 3)  # 5 steps an epoch, the last of one row

OTHER = StreamSpec("1" * 32, 0, "sequential", 13, 3)


class EngineMachine(RuleBasedStateMachine):
    """One shared stream, up to two trainers with up to three cursors each, workers that die."""

    @initialize(
        workers=st.integers(1, 3),
        slots=st.integers(4, 9),
        by_rows=st.booleans(),
        spare=st.none() | st.integers(0, 12),
        odd=st.dictionaries(
            st.tuples(st.integers(0, 3), st.integers(0, 4)),
            st.sampled_from(["deviates", "fails", "large", "kills"]),
            max_size=4,
        ),
        lookback=st.sampled_from([0, 0, 1, 2, 5]),
        planned=st.booleans(),
        shards=st.none() | st.lists(st.integers(0, 4), min_size=1, max_size=4),
        equal=st.booleans(),
        forks=st.sampled_from([None, None, "small", "large", "unpicklable"]),
        reads=st.booleans(),
    )
    def begin(
        self,
        workers,
        slots,
        by_rows,
        odd,
        spare=None,
        lookback=0,
        planned=False,
        shards=None,
        equal=False,
        forks=None,
        remote=0,
        odd_nodes=frozenset(),
        reads=False,
    ):
        """`forks`: what the program is like that trainers have, if they hand over forks of themselves. `remote`: how
        many workers on other machines they ask for, of whose nodes the `odd_nodes` make other batches."""
        self.forks = forks
        memory = None if spare is None else slots + spare
        planned, by_rows = planned and shards is None, by_rows and shards is None
        self.equal = equal and not planned and shards is None
        writes = bool(lookback) or self.equal
        self.world = World(
            workers, slots, by_rows, memory, lookback=writes, planned=planned, shards=shards, remote=remote > 0
        )
        self.world.remote.odd_nodes = odd_nodes
        # A file that is rewritten changes no batch of equal epochs, and what other machines read nobody tells.
        self.world.reads = reads and not self.equal and not remote
        order = "sampler" if planned else "iterable" if shards is not None else SPEC.order
        order = "sequential" if self.equal else order
        self.spec = dataclasses.replace(
            SPEC, lookback=lookback, order=order, logical_shards=len(shards or ()), equal_epochs=self.equal
        )
        if remote:
            # Other machines are given what lies far ahead.
            self.spec = dataclasses.replace(self.spec, remote_workers=remote, length=160)
        for position, how in odd.items():
            if shards is not None and (self.world.is_void(position) or position[1] >= self.world.shard_steps):
                continue  # nothing that is not there is odd
            if how == "large":
                self.world.sizes[position] = 100 + 50 * (sum(position) % 8)
            if how == "kills":
                self.world.killing[position] = sum(position) % (1 if position[1] == 4 else 3)
            if how == "fails":
                self.world.failing.add(position)
            if how == "deviates":
                self.world.deviating.add(position)
        self.trainers = []
        self.closed = []
        self.next_cursor = 0
        self.kills = 0
        self.random_kills = 0
        self.zygote_kills = 0
        self.crashes = 0
        self.planner_kills = 0
        self.bridge_kills = 0
        self.has_changed = False
        self.join()

    def join(self):
        trainer = self.world.join(
            self.spec,
            shared=True,
            forks=self.forks is not None,
            pickles=self.forks != "unpicklable",
            large=self.forks == "large",
        )
        self.trainers.append(trainer)
        self.next_cursor += 1
        trainer.place(self.next_cursor, 0, 0, True)

    # --- the world moves ---

    @precondition(lambda self: self.world.pending)
    @rule(index=st.integers(0, 9))
    def deliver(self, index):
        self.world.deliver(index)

    @precondition(lambda self: any(w.tasks for w in self.world.workers.values()))
    @rule(index=st.integers(0, 9), tasks=st.integers(1, 3))
    def work(self, index, tasks):
        self.world.work(index, tasks)

    @precondition(lambda self: self.random_kills < 10 and any(w.ready for w in self.world.workers.values()))
    @rule(index=st.integers(0, 9))
    def kill_worker(self, index):
        """At random: never four times at the same row, or batch where it is made as a whole: all of it runs alone after
        two deaths at one of its rows."""
        before = [(position, row if self.world.by_rows else 0) for position, row in self.world.deaths]
        if all(before.count(death) < 3 for death in before):
            self.random_kills += 1
            self.world.kill_worker(index)

    @precondition(lambda self: self.zygote_kills < 2 and self.world.zygotes())
    @rule(index=st.integers(0, 1))
    def kill_zygote(self, index):
        before = self.world.deaths
        if all(before.count(death) < 2 for death in before):
            self.zygote_kills += 1
            self.world.kill_zygote(index)

    @precondition(lambda self: self.forks is not None and any(each.is_identified for each in self.trainers))
    @rule(which=st.integers(0, 1))
    def change_the_dataset(self, which):
        """Forks that the trainer makes from now on are of another program."""
        trainer = self.trainers[which % len(self.trainers)]
        if trainer.is_identified:
            trainer.fingerprint = OTHER.fingerprint
            self.has_changed = True

    @precondition(lambda self: self.world.engine.streams)
    @rule(which=st.integers(0, 3), workers=st.integers(0, 5))
    def tune(self, which, workers):
        """Workers come and go, as the daemon finds right."""
        self.world.tune(which, workers)

    @precondition(lambda self: self.world.engine.streams)
    @rule(which=st.integers(0, 3), slots=st.integers(1, 16))
    def resize(self, which, slots):
        """Rings get more slots and fewer, as the daemon finds right."""
        self.world.resize(which, slots)

    @rule(scarce=st.booleans())
    def processes_are_scarce(self, scarce):
        self.world.scarce = scarce

    # --- on other machines ---

    @precondition(lambda self: self.world.remote.steps())
    @rule(index=st.integers(0, 19))
    def on_another_machine(self, index):
        self.world.remote.step(index)

    @precondition(lambda self: self.bridge_kills < 3 and self.world.remote.bridges)
    @rule(index=st.integers(0, 3))
    def kill_bridge(self, index):
        self.bridge_kills += 1
        self.world.remote.kill_bridge(index)

    @precondition(lambda self: any(each.workers for each in self.world.remote.bridges.values()))
    @rule(index=st.integers(0, 9))
    def lose_remote_worker(self, index):
        self.world.remote.lose_worker(index)

    # --- where a sampler decides the order ---

    @precondition(lambda self: any(each.messages for each in self.world.planners.values()))
    @rule(index=st.integers(0, 9))
    def plan(self, index):
        self.world.plan(index)

    @precondition(lambda self: self.world.planners and self.planner_kills < 3)
    @rule()
    def kill_planner(self):
        self.planner_kills += 1
        self.world.kill_planner()

    @precondition(lambda self: self.world.planned)
    @rule(variant=st.integers(0, 3))
    def reseed(self, variant=1):
        self.world.variant = variant

    @precondition(lambda self: any(each.unsaid for each in self.trainers))
    @rule(which=st.integers(0, 1))
    def say(self, which):
        self.world.say(self.trainers[which % len(self.trainers)])

    @rule(which=st.integers(0, 1))
    def go_deaf(self, which):
        """It does something else than next() for a while."""
        self.trainers[which % len(self.trainers)].deaf = True

    def hear(self, trainer):
        trainer.deaf = False
        self.world.answer(trainer)

    # --- an operator asks ---

    @rule(drain=st.booleans())
    def pause(self, drain):
        (self.world.engine.drain if drain else self.world.engine.pause)("")
        self.world.run()

    @rule()
    def resume(self):
        self.world.engine.resume("")
        self.world.run()

    # --- trainers move ---

    @precondition(lambda self: len(self.trainers) < 2 and self.is_of_one_mind())
    @rule()
    def another_trainer(self):
        self.join()

    def is_of_one_mind(self):
        """No two iterators are in one epoch in two variants."""
        begun = [each for trainer in self.trainers for each in trainer.cursors.values() if each.variant is not None]
        return len({(each.epoch, each.variant) for each in begun}) == len({each.epoch for each in begun})

    @precondition(lambda self: len(self.trainers) > 1)
    @rule(index=st.integers(0, 1))
    def kill_trainer(self, index):
        self.world.kill(self.trainers.pop(index % len(self.trainers)))

    @precondition(lambda self: len(self.trainers) > 1)
    @rule()
    def goodbye(self):
        trainer = self.trainers.pop(0)
        if not trainer.connected:
            self.world.reconnect(trainer)
        self.world.goodbye(trainer)
        while trainer.held:
            trainer.let_go(0)
        trainer.flush()
        self.world.kill(trainer)

    @precondition(lambda self: len(self.trainers) > 1 and len(self.closed) < 8)
    @rule(index=st.integers(0, 1))
    def close_and_hold(self, index):
        trainer = self.trainers.pop(index % len(self.trainers))
        self.world.goodbye(trainer)
        self.closed.append(trainer)

    @precondition(lambda self: self.closed)
    @rule(index=st.integers(0, 9))
    def let_go_after_close(self, index):
        trainer = self.closed.pop(index % len(self.closed))
        while trainer.held:
            trainer.let_go(0)
        self.world.kill(trainer)

    @precondition(lambda self: self.kills < 3)
    @rule(crash=st.booleans(), rest=st.booleans(), others=st.booleans())
    def all_leave_and_one_comes_back(self, crash, rest, others):
        """While nobody consumes the stream, it may be filled up and parked."""
        self.kills += 1
        for trainer in self.trainers:
            if not crash and trainer.connected:
                self.world.goodbye(trainer)
            self.world.kill(trainer)
        self.trainers = []
        if others:
            other = self.world.join(OTHER, "other")
            other.place(1, 0, 0, True)
            self.world.goodbye(other)
            self.world.kill(other)
        if rest:
            self.world.come_to_rest()
        self.world.now += 1
        self.world.tick()
        self.join()

    # --- what ends a connection, but no trainer ---

    @precondition(lambda self: self.crashes < 3)
    @rule()
    def crash_the_daemon(self):
        self.crashes += 1
        self.world.crash()

    @precondition(lambda self: self.crashes < 3)
    @rule(which=st.integers(0, 1))
    def cut_off(self, which):
        trainer = self.trainers[which % len(self.trainers)]
        # One that was refused, as it came back with another dataset, has no connection any more.
        assert trainer.open or self.has_changed
        if trainer.connected and trainer.open:
            self.crashes += 1
            self.world.cut_off(trainer)

    @rule(which=st.integers(0, 1))
    def reconnect(self, which):
        trainer = self.trainers[which % len(self.trainers)]
        if not trainer.connected:
            self.world.reconnect(trainer)

    @precondition(lambda self: self.world.former_workers)
    @rule(index=st.integers(0, 9))
    def former_work(self, index):
        self.world.former_work(index)

    @precondition(lambda self: self.world.former_workers)
    @rule()
    def former_workers_die(self):
        self.world.former_workers_die()

    @precondition(lambda self: self.world.reads and self.world.version < 5)
    @rule()
    def rewrite(self):
        """The training loop rewrites the file that all samples read."""
        self.world.version += 1

    @rule(which=st.integers(0, 1), begin=st.booleans())
    def next_iterator(self, which, begin):
        trainer = self.trainers[which % len(self.trainers)]
        waiting = next((each for each in trainer.cursors.values() if each.waiting), None)
        living = [each for each in trainer.cursors.values() if not each.waiting]
        if waiting is not None and len(living) < 6:
            trainer.activate(waiting.number)
            self.next_cursor += 1
            trainer.place(self.next_cursor, 0 if self.equal else waiting.epoch + 1, 0, True)

    @rule(which=st.integers(0, 1), index=st.integers(0, 5), hold=st.booleans())
    def next_batch(self, which, index, hold):
        trainer = self.trainers[which % len(self.trainers)]
        self.hear(trainer)
        living = [each for each in trainer.cursors.values() if not each.waiting]
        if living:
            cursor = living[index % len(living)]
            if trainer.can_next(cursor.number):
                trainer.next(cursor.number, hold)
            elif trainer.is_at_end(cursor.number):
                trainer.close(cursor.number)

    @rule(which=st.integers(0, 1), index=st.integers(0, 9))
    def let_go(self, which, index):
        trainer = self.trainers[which % len(self.trainers)]
        if trainer.held:
            trainer.let_go(index % len(trainer.held))

    @rule(which=st.integers(0, 1), index=st.integers(0, 5))
    def break_off(self, which, index):
        trainer = self.trainers[which % len(self.trainers)]
        living = [each for each in trainer.cursors.values() if not each.waiting]
        if living:
            trainer.close(living[index % len(living)].number)

    @rule(which=st.integers(0, 1), epoch=st.integers(0, 3), step=st.integers(0, 5))
    def jump(self, which, epoch, step):
        trainer = self.trainers[which % len(self.trainers)]
        waiting = next((each for each in trainer.cursors.values() if each.waiting), None)
        if waiting is not None:
            trainer.close(waiting.number)
            self.next_cursor += 1
            trainer.place(self.next_cursor, 0 if self.equal else epoch, step, True)
            if self.world.planned:
                trainer.load(epoch)

    @invariant()
    def every_yield_is_in_order(self):
        if not hasattr(self, "world"):
            return
        for positions in self.world.yields.values():
            for before, after in itertools.pairwise(positions):
                epoch, step = before[0], before[1] + 1
                while self.world.is_void((epoch, step)):
                    step += 1
                assert after == (epoch, step)

    @rule(which=st.integers(0, 1), index=st.integers(0, 5))
    def wait(self, which, index):
        trainer = self.trainers[which % len(self.trainers)]
        living = [each for each in trainer.cursors.values() if not each.waiting]
        if living and not trainer.can_next(living[index % len(living)].number):
            trainer.wait(living[index % len(living)].number)

    @rule(seconds=st.sampled_from([0.3, 31.0, 61.0]))
    def time_passes(self, seconds):
        self.world.now += seconds
        self.world.tick()

    def processes_can_be_had(self):
        self.world.scarce = False
        if any(each[0] in ("not started", "not loaded") for each in self.world.pending):
            self.world.come_to_rest()
        if any(each.failed_starts.is_pausing for each in self.world.engine.streams.values()):
            self.time_passes(61.0)

    def teardown(self):
        """Nobody waits for ever: with the kept batches kept and the other iterators at rest, every living one comes to
        its epoch's end."""
        if not hasattr(self, "world"):
            return
        self.world.former_workers_die()
        self.resume()
        self.processes_can_be_had()
        for trainer in self.trainers:
            if not trainer.connected:
                self.world.reconnect(trainer)
            self.hear(trainer)
        for trainer in self.trainers:
            assert trainer.failed is None or (self.has_changed and "been changed" in trainer.failed), trainer.failed
            trainer.flush()
            for cursor in [each for each in trainer.cursors.values() if not each.waiting]:
                while not trainer.is_at_end(cursor.number):
                    if not trainer.can_next(cursor.number):
                        trainer.wait(cursor.number)
                        self.world.come_to_rest()
                    if self.has_changed and (trainer.failed is not None or trainer.refused is not None):
                        # It came back with another dataset, perhaps when somebody else had the name.
                        break
                    assert trainer.can_next(cursor.number) or trainer.is_at_end(cursor.number), f"stuck: {cursor}"
                    if trainer.can_next(cursor.number):
                        trainer.next(cursor.number, hold=True)


TestEngine = EngineMachine.TestCase
TestEngine.settings = tries(
    300,
    stateful_step_count=60,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def found_orders():
    """Orders of events that have broken the engine once."""
    yield (
        "a recalled batch that its holder gives back is filled again",
        {"workers": 3, "slots": 4, "by_rows": False},
        "deliver:9 deliver:6 work deliver:2 next_iterator deliver:1 deliver deliver:9 deliver:5 another_trainer "
        "work:1 work:4 kill_trainer:1 next_batch another_trainer work:6 kill_trainer next_iterator work next_iterator",
    )
    yield (
        "two iterators of one trainer on one batch, the later one behind the earlier one's offers",
        {"workers": 1, "slots": 8, "by_rows": True},
        "deliver deliver next_iterator break_off next_iterator break_off next_iterator jump:2:1 next_iterator",
    )
    yield (
        "what one next() waits for has no room yet, and other iterators' batches are not even claimed",
        {"workers": 2, "slots": 5, "by_rows": True},
        "another_trainer jump:3:0:1 deliver:4 next_iterator:1 deliver:2 next_iterator:1 next_iterator:1 "
        "next_iterator:1 next_iterator next_iterator:1 next_iterator:1",
    )
    yield (
        "a recall that cannot help",
        {"workers": 1, "slots": 4, "by_rows": False},
        "another_trainer deliver deliver work next_iterator deliver deliver work next_iterator",
    )
    yield (
        "equal epochs that fit the ring only once it has grown, and what lies behind is kept for the next one",
        {"workers": 1, "slots": 4, "by_rows": False, "equal": True},
        "next_iterator",
    )
    yield (
        "iterators in more epochs than the states of epochs were kept for",
        {"workers": 2, "slots": 5, "by_rows": False, "planned": True, "spare": 0},
        "deliver:1 next_iterator next_iterator deliver:1 next_iterator break_off:0:1 break_off:0:1 next_iterator "
        "next_iterator break_off:0:1 next_iterator next_iterator next_iterator break_off:0:1",
    )
    yield (
        "ready batches of later epochs, the earlier ones of unknown length, and no room",
        {"workers": 1, "slots": 4, "by_rows": False, "shards": [0, 1]},
        "all_leave_and_one_comes_back next_iterator crash_the_daemon",
    )
    yield (
        "offers of waiting iterators in the way of living ones",
        {"workers": 1, "slots": 4, "by_rows": False},
        "another_trainer next_iterator next_iterator next_iterator:1 jump:0:0",
    )
    yield (
        "a shard's beginning beside a suspect that runs alone",
        {"workers": 1, "slots": 4, "by_rows": False, "shards": [1, 0], "reads": True, "odd": {(0, 0): "kills"}},
        "next_iterator",
    )


ARGUMENTS = {
    "deliver": ["index"],
    "work": ["index"],
    "kill_trainer": ["index"],
    "next_iterator": ["which"],
    "break_off": ["which", "index"],
    "jump": ["epoch", "step", "which"],
    "next_batch": ["which"],
}
DEFAULTS = {
    "deliver": {"index": 0},
    "work": {"index": 0, "tasks": 1},
    "kill_trainer": {"index": 0},
    "next_iterator": {"which": 0, "begin": False},
    "break_off": {"which": 0, "index": 0},
    "jump": {"which": 0},
    "next_batch": {"which": 0, "index": 0, "hold": True},
    "another_trainer": {},
    "all_leave_and_one_comes_back": {"crash": True, "others": False, "rest": True},
    "crash_the_daemon": {},
}


@pytest.mark.parametrize(("begin", "events"), [pytest.param(b, e, id=name) for name, b, e in found_orders()])
def test_an_order_that_broke_the_engine_once(begin, events):
    machine = EngineMachine()
    machine.begin(**({"odd": {}} | begin))
    for event in events.split():
        name, *values = event.split(":")
        given = dict(zip(ARGUMENTS.get(name, []), map(int, values)))
        getattr(machine, name)(**(DEFAULTS[name] | given))
        machine.every_yield_is_in_order()
    machine.teardown()
