"""Workers die: their rows go to others, suspects run alone, and only what ends its workers alone is blamed."""

from __future__ import annotations

import dataclasses
import random
import signal

import pytest

from prefetchd.daemon.engine.pool.suspect_isolation import PATIENCE_S
from prefetchd.daemon.engine.stream.blame import BLAMED_AFTER, MOST_DEATHS_A_BATCH, SUSPECTED_AFTER
from prefetchd.processes.process_exit import KILLED, ProcessExit
from prefetchd.wire.messages import MEASURE
from prefetchd.wire.remote_exception import decode_exception
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.wire.worker_status import COLLATING, IDLE, LOADING, WRITING, WorkerStatus
from tests.property.world import World

SPEC = StreamSpec("0" * 32, 0, "sequential", 24, 4)
ROWS = [True, False]
DEATHS_TO_BLAME = SUSPECTED_AFTER + BLAMED_AFTER


class Run:
    """A trainer on one stream of a world; next() is the next batch's error, or None."""

    def __init__(
        self,
        workers: int = 3,
        *,
        by_rows: bool = True,
        name: str = "s",
        world: World | None = None,
        forks: bool = False,
        **spec,
    ):
        self.world = world or World(workers, 6, by_rows)
        self.spec = dataclasses.replace(SPEC, **spec)
        self.trainer = self.world.join(self.spec, name, forks=forks)
        self.trainer.place(1, 0, 0, True)
        self.trainer.activate(1)

    @property
    def state(self):
        return self.world.engine.streams[self.trainer.stream]

    def next(self):
        self.world.come_to_rest()
        offer = self.trainer.cursors[1].offers[self.trainer.cursors[1].step]
        self.trainer.next(1, hold=False)
        return decode_exception(offer) if isinstance(offer, bytes) else None

    def busy(self):
        """The workers with tasks, by what they have in hand."""
        return {_place(worker.tasks[0]): worker for worker in self.world.workers.values() if worker.tasks}

    def begin(self):
        """Until workers are busy with batches of a ring."""
        while not self.busy() or self.state.window.ring is None:
            self.world.deliver(0) if self.world.pending else self.world.work(0)
        while self.world.pending:
            self.world.deliver(0)

    def die(self, worker, row: int, **note):
        """The worker dies at this row of the task that it has in hand."""
        self.world.guilty.add(worker.tasks[0].position)
        said = WorkerStatus(worker.tasks[0].number, **({"phase": LOADING, "row": row, "index": 100 + row} | note))
        self.world._die(worker, row, ProcessExit.killed(signal.SIGSEGV), said)
        self.world.run()


def _place(task):
    """The rows that the task fills."""
    return (*task.position, task.first, task.end)


# --- the innocent ---


@pytest.mark.parametrize("by_rows", ROWS)
@pytest.mark.parametrize("seed", range(5))
def test_ten_kills_at_random_are_no_error(by_rows, seed):
    run, chance, kills = Run(by_rows=by_rows, length=400), random.Random(seed), 0
    for _ in range(100):
        for _ in range(chance.randrange(4)):
            if run.world.pending:
                run.world.deliver(chance.randrange(9))
            elif any(worker.tasks for worker in run.world.workers.values()):
                run.world.work(chance.randrange(9))
        if kills < 10 and chance.random() < 0.6 and any(worker.tasks for worker in run.world.workers.values()):
            run.world.kill_worker(chance.randrange(9), chance.random())
            kills += 1
        assert run.next() is None
    assert run.state.counters.worker_deaths == kills == 10


def test_a_kill_between_two_tasks_is_about_none():
    run = Run(1)
    for task in (-1, 0):  # it has not begun, or is done and not told
        run.begin()
        for _ in range(BLAMED_AFTER + SUSPECTED_AFTER):
            run.begin()
            (worker,) = run.busy().values()
            told = worker.tasks[0].number + task
            run.world._die(worker, 0, KILLED, WorkerStatus(told, IDLE if not task else LOADING, 1, 1))
            run.world.run()
    assert run.next() is None


def test_only_the_task_at_hand_is_suspicious():
    """Those that waited behind it in the worker's socket go first again, and are not cut."""
    run = Run(1)
    run.begin()
    (worker,) = run.busy().values()
    if len(worker.tasks) < 2:
        pytest.skip("the worker has one task at a time")
    behind = [_place(task) for task in worker.tasks[1:]]
    run.die(worker, 1)
    run.begin()
    (worker,) = run.busy().values()
    assert [(task.first, task.end) for task in worker.tasks][:1] == [(0, 1)]
    assert set(behind).isdisjoint({_place(task) for task in worker.tasks[:3]})


# --- the guilty ---


@pytest.mark.parametrize("row", [0, 2, 3])
@pytest.mark.parametrize("position", [(0, 0), (0, 2)])
@pytest.mark.parametrize("by_rows", ROWS)
def test_a_sample_that_ends_its_workers_is_blamed_and_nothing_else_is(by_rows, position, row):
    run = Run(by_rows=by_rows)
    run.world.killing[position] = row
    errors = [run.next() for _ in range(6)]
    assert [at for at, error in enumerate(errors) if error is not None] == [position[1]]
    error = errors[position[1]]
    assert error.type_name == "WorkerDiedError"
    assert f"dataset[{1000 + row}], epoch 0, step {position[1]}" in error.message
    assert "killed by SIGSEGV" in error.message
    assert "on_error='skip'" in error.message
    assert run.state.counters.worker_deaths == DEATHS_TO_BLAME
    assert run.state.counters.failed == 1


def test_a_suspect_runs_while_nothing_else_does():
    run = Run()
    run.world.killing[(0, 1)] = 2
    at_last = []
    die = run.world._die

    def watch(worker, row, how, *rest, **known):
        at_last.append(sum(bool(each.tasks) for each in run.world.workers.values()))
        die(worker, row, how, *rest, **known)

    run.world._die = watch
    assert run.next() is None
    assert run.next() is not None
    assert len(at_last) == DEATHS_TO_BLAME
    assert at_last[-BLAMED_AFTER:] == [1] * BLAMED_AFTER


def test_a_row_is_cut_out_after_the_first_death():
    run = Run(1)
    run.begin()
    (worker,) = run.busy().values()
    position = worker.tasks[0].position
    run.die(worker, 2)
    run.begin()
    tasks = []
    while run.busy():
        (worker,) = run.busy().values()
        tasks += [(task.first, task.end) for task in worker.tasks[:1] if task.position == position]
        run.world.work(0)
        while run.world.pending:
            run.world.deliver(0)
    assert tasks == [(0, 2), (2, 3), (3, 4)]


@pytest.mark.parametrize(
    ("phase", "what"), [(COLLATING, "collate_fn"), (WRITING, "writing the batch"), (LOADING, "dataset.__getitems__")]
)
@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_is_about_the_whole_batch_is_blamed_by_name(phase, what, on_error):
    run = Run(1, by_rows=False, on_error=on_error)
    run.begin()
    for deaths in range(DEATHS_TO_BLAME):
        run.begin()
        (worker,) = run.busy().values()
        assert worker.tasks[0].position == (0, 0), deaths
        run.die(worker, -1, phase=phase, index=-1)
    if phase == LOADING and on_error == "skip":
        run.begin()
        (worker,) = run.busy().values()
        assert worker.tasks[0].deadly == ((-1, 0),), "the workers are told not to call it"
        assert run.next() is None
    else:
        error = run.next()
        assert what in error.message
        assert error.location == f"{what}, epoch 0, step 0"
    assert run.next() is None


def test_several_bad_samples_of_one_batch_are_told_apart():
    """Deaths at one of them do not count for another, in whatever order they come."""
    run = Run(1, on_error="substitute")
    run.begin()
    deadly: set = set()
    killers = {0, 1, 3}
    for _ in range(200):
        if not run.busy():
            run.begin()
        (worker,) = run.busy().values()
        task = worker.tasks[0]
        deadly |= set(task.deadly) if task.position == (0, 0) else set()
        killing = [row for row in range(task.first, task.end) if row in killers and (row, 0) not in deadly]
        rows = killing if task.kind != MEASURE else []
        if task.position == (0, 0) and rows:
            run.die(worker, rows[-1])
        elif deadly >= {(row, 0) for row in killers}:
            break
        else:
            run.world.work(0)
    assert deadly == {(row, 0) for row in killers}
    assert run.state.counters.worker_deaths == len(killers) * DEATHS_TO_BLAME
    assert run.next() is None


def test_a_batch_on_which_workers_die_anywhere_is_given_up():
    run = Run(1, by_rows=False)
    run.begin()
    for deaths in range(MOST_DEATHS_A_BATCH):
        run.begin()
        (worker,) = run.busy().values()
        run.die(worker, deaths * 7)
    error = run.next()
    assert error.type_name == "WorkerDiedError"
    assert "no single sample is to blame" in error.message
    assert run.next() is None


# --- on_error ---


@pytest.mark.parametrize("by_rows", ROWS)
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_workers_are_told_which_samples_end_them(by_rows, on_error):
    run = Run(by_rows=by_rows, on_error=on_error)
    for position in [(0, 0), (0, 3)]:
        run.world.killing[position] = 1
    assert [run.next() for _ in range(6)] == [None] * 6
    assert run.state.counters.worker_deaths == 2 * DEATHS_TO_BLAME
    assert run.state.counters.failed == 0


def test_a_substitute_that_ends_its_workers_is_one_more_suspect():
    run = Run(1, on_error="substitute")
    run.begin()
    for attempt in (0, 1):
        for _ in range(DEATHS_TO_BLAME):
            run.begin()
            while (worker := next(iter(run.busy().values()))).tasks[0].first > 2 or worker.tasks[0].end <= 2:
                run.world.work(0)
            run.die(worker, 2, attempt=attempt)
    run.begin()
    while (task := next(iter(run.busy().values())).tasks[0]).first > 2 or task.end <= 2:
        run.world.work(0)
    assert task.deadly == ((2, 0), (2, 1))


# --- what must not wait for ever ---


def test_a_suspect_waits_for_a_task_that_never_ends_but_not_for_long():
    world = World(2, 6)
    other = Run(world=world, name="other")
    other.begin()
    _, hung = min(other.busy().items())
    while len(other.busy()) > 1:
        world.work(1)
        while world.pending:
            world.deliver(0)
    hung.tasks = []  # it will never be done: nobody can let it work
    run = Run(world=world)
    world.killing[(0, 0)] = 1
    world.come_to_rest()
    assert not run.trainer.can_next(1), "it would have to run alone"
    assert run.state.claims.queue.has_suspect
    assert run.state.counters.worker_deaths == SUSPECTED_AFTER
    world.now += PATIENCE_S + 1
    world.tick()
    assert "dataset[1001]" in run.next().message


def test_others_wait_for_a_suspect_that_never_ends_but_not_for_long():
    run = Run(1)
    run.begin()
    for _ in range(SUSPECTED_AFTER):
        run.begin()
        (worker,) = run.busy().values()
        run.die(worker, 1)
    run.begin()
    (suspect,) = run.busy().values()
    while (suspect.tasks[0].first, suspect.tasks[0].end) != (1, 2):  # what stood before it was not suspicious
        run.world.work(0)
    run.world.engine.pool._limit.now = 2
    suspect.tasks, kept = [], suspect.tasks
    other = Run(world=run.world, name="other")
    run.world.come_to_rest()
    assert not any(worker.tasks for worker in run.world.workers.values()), "a suspect does not run alone"
    run.world.now += PATIENCE_S + 1
    run.world.tick()
    assert other.next() is None
    suspect.tasks = kept
    assert run.next() is None, "it was only slow"


def test_a_suspect_without_a_worker_keeps_nobody_waiting():
    world = World(1, 6)
    run = Run(world=world)
    world.killing[(0, 1)] = 0
    withheld = []
    while not withheld:
        while world.pending:
            if world.pending[0][0] == "started" and run.state.claims.queue.has_suspect:
                withheld.append(world.pending.pop(0))
            else:
                world.deliver(0)
        if not withheld:
            world.work(0)
    other = Run(world=world, name="other")
    assert other.next() is None
    world.pending = withheld
    assert [run.next() is None for _ in range(3)] == [True, False, True]


# --- memory ---


def test_kills_for_memory_lower_the_limit_before_anything_is_blamed():
    run = Run(3, by_rows=False)
    run.begin()
    limits = []
    for kills in range(1, 3):
        run.begin()
        _, worker = min(run.busy().items())
        run.world._die(worker, 0, KILLED, oom_kills=kills)
        run.world.run()
        limits.append(run.world.engine.pool.limit)
    assert limits == [2, 1]
    assert not run.state.blame._suspicions
    run.begin()
    while run.world.pending:
        run.world.deliver(0)
    assert len(run.busy()) == 1


def test_with_one_worker_left_a_sample_that_needs_too_much_memory_is_blamed():
    run = Run(1, by_rows=False)
    run.begin()
    for kills in range(DEATHS_TO_BLAME):
        run.begin()
        (worker,) = run.busy().values()
        run.world.guilty.add(worker.tasks[0].position)
        run.world._die(worker, 3, KILLED, oom_kills=kills + 1)
        run.world.run()
    assert run.world.engine.pool.limit == 1
    assert "dataset[1003]" in run.next().message


def test_the_limit_is_the_old_one_again_when_all_streams_are_gone():
    run = Run(3)
    run.begin()
    run.world._die(min(run.busy().items())[1], 0, KILLED, oom_kills=1)
    run.world.run()
    assert run.world.engine.pool.limit == 2
    run.world.goodbye(run.trainer)
    run.world.kill(run.trainer)
    run.world.now += 1000
    run.world.tick()
    run.world.tick()
    assert run.world.engine.pool.limit == 3


# --- timeout ---


def test_a_task_that_takes_longer_than_the_timeout_is_killed_and_its_batch_says_so():
    run = Run(1, timeout_s=5.0)
    run.begin()
    (worker,) = run.busy().values()
    position = worker.tasks[0].position
    run.world.now += 4
    run.world.tick()
    assert ("stopped", worker.number) not in run.world.pending
    run.world.now += 2
    run.world.tick()
    run.world.tick()
    assert run.world.pending == [("looked at", worker.number)], "before it is killed it is looked where it is"
    run.world.deliver(0)
    run.world.tick()
    assert run.world.pending.count(("stopped", worker.number)) == 1
    run.world.pending.remove(("stopped", worker.number))
    run.die(worker, 1)
    errors = [run.next() for _ in range(6)]
    assert [at for at, error in enumerate(errors) if error is not None] == [position[1]]
    error = errors[position[1]]
    assert error.type_name == "TaskTimeoutError"
    assert f"dataset[101], epoch 0, step {position[1]}" in error.message
    assert "timeout=5 seconds; its worker was killed, at:\n    data.py:7 in wait\n    data.py:3 in" in error.message
    assert "PREFETCHD_START" not in error.message, "that is what it was started with"


def test_what_waits_in_a_fork_may_wait_for_a_lock():
    run = Run(1, timeout_s=5.0, forks=True)
    run.begin()
    (worker,) = run.busy().values()
    run.world.now += 6
    run.world.tick()
    run.world.deliver(0)
    run.world.pending.clear()
    run.die(worker, 1)
    (error,) = [error for error in (run.next() for _ in range(6)) if error is not None]
    assert "a lock that another thread of the trainer held when this was forked, PREFETCHD_START=exec" in error.message


def test_a_task_that_is_done_while_its_worker_is_looked_at_is_not_killed():
    run = Run(1, timeout_s=5.0)
    run.begin()
    run.world.now += 6
    run.world.tick()
    run.world.work(0)
    run.world.deliver(0)
    assert not any(each[0] == "stopped" for each in run.world.pending)
    assert [run.next() for _ in range(6)] == [None] * 6


def test_a_worker_that_cannot_be_looked_at_is_killed_all_the_same():
    run = Run(1, timeout_s=5.0)
    run.begin()
    (worker,) = run.busy().values()
    run.world.now += 6
    run.world.tick()
    run.world.pending.clear()
    run.world.now += 4
    run.world.tick()
    assert run.world.pending == [("stopped", worker.number)]


def test_each_task_has_the_time_to_itself():
    run = Run(1, timeout_s=5.0)
    run.begin()
    for _ in range(12):
        run.world.now += 4
        run.world.tick()
        run.world.work(0)
        if not run.busy():
            break
    assert not any(each[0] == "stopped" for each in run.world.pending)


def test_without_a_timeout_nothing_is_killed_for_being_slow():
    run = Run(1)
    run.begin()
    run.world.now += 1e6
    run.world.tick()
    assert not any(each[0] == "stopped" for each in run.world.pending)
