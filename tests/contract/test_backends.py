"""What every Backend promises (workers.backend), with real programs, real rings and a real loop."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from prefetchd_client.forking.trainer_fork import reap
from prefetchd_client.session.remote_errors import rebuild_exception

from prefetchd.processes.process_exit import CLEAN, KILLED, ProcessExit
from prefetchd.processes.stack_dumps import gist
from prefetchd.wire.messages import FILL_ROWS, FILL_WHOLE, Fill
from prefetchd.wire.remote_exception import decode_exception
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.worker_status import IDLE, LOADING, NO_WORKER_STATUS
from tests.contract import programs
from tests.contract.backend_harness import STARTS, Stage, wait_for_end
from tests.scenario.datasets import Made, Numbers, equal
from tests.scenario.scarcity import few_descriptors_left
from tests.scenario.waiting import until

# --- beginning ---


def test_a_stream_is_loaded_and_its_workers_are_ready(stage):
    with stage.stream(Numbers()) as stream:
        assert stage.event("host_ready", stream.host)[2] == ""
        assert len(stream.start_workers(3)) == 3


def test_a_program_that_does_not_load_is_told_with_the_users_exception(executing_stage):
    stage = executing_stage
    with stage.stream(programs.Unloadable("index.json")) as stream:
        _, _, message, error = stage.event("load_failed", stream.number)
        assert "LookupError: the index is not there: index.json" in message
        told = decode_exception(error)
        assert (told.type_name, told.location) == ("LookupError", "loading the program")
        assert "in _fail" in told.traceback
        rebuilt = rebuild_exception(error)
        assert type(rebuilt) is LookupError
        assert str(rebuilt) == "the index is not there: index.json"
        assert not stage.has_told("host_ready", stream.host)


def test_a_program_that_exits_when_it_is_loaded_is_told_too(executing_stage):
    stage = executing_stage
    with stage.stream(programs.Unloadable("exit")) as stream:
        assert "SystemExit: nothing to train on" in stage.event("load_failed", stream.number)[2]


def test_worker_init_fn_runs_once_in_each_worker_before_it_is_ready(stage):
    with stage.stream(Numbers(64), worker_init_fn=programs.init_speaks) as stream:
        workers = stream.start_workers(2)
        for place, worker in enumerate(workers):
            assert stage.event("output", stream.number, worker)[3:] == ([f"worker_init_fn of {place}"], 0)
        stream.measure(workers[0])
        stream.make_ring(workers)
        for place, worker in enumerate(workers):
            (task,) = stream.assign(worker, (FILL_ROWS, 0, place, 0, 4, place))
            stream.answer(worker, task)
            stage.call("stop_worker", worker, kill=False)
            stage.event("worker_died", worker)
            said = [
                line for each in stage.told.events if each[:3] == ("output", stream.number, worker) for line in each[3]
            ]
            assert said == [f"worker_init_fn of {place}"], "not again for a task"


def test_a_worker_init_fn_that_raises_is_told_and_ends_the_worker(stage):
    with stage.stream(Numbers(), worker_init_fn=programs.init_fails) as stream:
        stream.loaded()
        stream.start_worker(worker := 1_000_001)
        _, _, message, error = stage.event("load_failed", stream.number)
        assert message == "worker_init_fn(0): ConnectionError: no database for worker 0"
        assert type(rebuild_exception(error)) is ConnectionError
        stage.event("worker_died", worker)
        assert not stage.has_told("worker_ready", worker)


def test_a_worker_of_a_stream_that_is_not_there_dies(stage):
    stage.call("start_worker", 1_000_002, 1_000_004, 1_000_003, 0, 1)
    stage.event("worker_died", 1_000_003)
    stage.call("drop_stream", 1_000_002)


def test_a_worker_for_which_no_process_can_be_had_is_told_and_the_next_one_comes(stage):
    """Found as a zygote that ended with it."""
    with stage.stream(Numbers(64)) as stream:
        first, *_ = stream.start_workers(1)
        zygote = stage.zygote_pid(stream.host)
        # The worker may be ready before its zygote has closed what it has handed over.
        until(lambda: psutil.Process(zygote).status() == psutil.STATUS_SLEEPING, "the zygote waits")
        with few_descriptors_left(zygote, 1):
            stream.start_worker(1_000_021, worker_index=1)
            assert stage.event("worker_not_started", 1_000_021)[2].startswith("Too many open files: ")
            stage.call("stop_worker", 1_000_021, kill=True)
        stream.start_worker(1_000_022, worker_index=1)
        stage.event("worker_ready", 1_000_022)
        stream.measure(first)
        assert not stage.has_told("host_died", stream.host)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_a_worker_whose_descriptors_find_no_room_here_is_told_and_its_zygote_lives(stage, left):
    """Found as a stream that failed: its zygote was killed again and again for what it had sent."""
    with stage.stream(Numbers(64)) as stream:
        first, *_ = stream.start_workers(1)
        stream.start_worker(1_000_041, worker_index=1)
        with few_descriptors_left(os.getpid(), left):
            assert "descriptors arrived, and more were sent" in stage.event("worker_not_started", 1_000_041)[2]
        stream.start_worker(1_000_042, worker_index=1)
        stage.event("worker_ready", 1_000_042)
        stream.measure(first)
        assert not stage.has_told("host_died", stream.host)


def test_a_zygote_for_which_no_process_can_be_had_is_told_and_the_next_one_comes(executing_stage):
    stage = executing_stage
    with stage.stream(Numbers(64)) as stream:
        stage.event("host_ready", stream.host)
        with few_descriptors_left(stage.environment_pid(stream.host), 3), stage.stream(Numbers(64)) as following:
            assert stage.event("host_not_started", following.host)[2].startswith("Too many open files: ")
        with stage.stream(Numbers(64)) as following:
            stage.event("host_ready", following.host)


def test_get_worker_info_tells_place_number_and_dataset(stage):
    with stage.stream(Made(programs.who, 12)) as stream:
        workers = stream.start_workers(3)
        stream.measure(workers[0])
        stream.make_ring(workers)
        for place, worker in enumerate(workers):
            stream.fill_rows(worker, step=1, slot=place)
            assert equal(stream.batch(place), torch.tensor([[place, 3, 12]] * 4))


def test_a_worker_has_its_dataset_to_itself(stage):
    with stage.stream(programs.Remembering()) as stream:
        workers = stream.start_workers(2)
        stream.measure(workers[0], step=5)
        stream.make_ring(workers)
        for slot, worker in enumerate(workers):
            stream.fill_rows(worker, step=1, slot=slot)
        assert stream.batch(0).tolist() == [1, 2, 3, 4]
        assert stream.batch(1).tolist() == [0, 1, 2, 3]


def test_the_gc_goes_through_the_program_and_not_through_all_that_was_imported(executing_stage):
    with executing_stage.stream(programs.Collected()) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        stream.fill_rows(worker, step=1, slot=0)
        looked_through, left_aside, is_at_work = stream.batch(0)[0].tolist()
    assert looked_through < left_aside / 2
    assert is_at_work


# --- what the user's code prints ---


def test_what_a_worker_prints_is_told_in_whole_lines(stage):
    with stage.stream(Made(programs.talkative)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker, step=4)

        def lines() -> list[str]:
            told = [each[3] for each in stage.told.events if each[:3] == ("output", stream.number, worker)]
            return [line for each in told for line in each]

        stage.until(lambda: len(lines()) >= 2)
        assert sorted(lines()) == ["sample 16", "to stderr"]


# --- endings ---


def test_a_worker_that_is_stopped_answers_its_tasks_first(stage):
    with stage.stream(Numbers(64)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        tasks = stream.assign(worker, *[(FILL_ROWS, 0, step, 0, 4, step) for step in range(4)])
        stage.call("stop_worker", worker, kill=False)
        stage.event("worker_died", worker)
        for task in tasks:
            assert stream.answer(worker, task)[0] == task
        *told, note = stage.told.events[-1]
        assert told == ["worker_died", worker, CLEAN]
        assert (note.phase, note.task) == (IDLE, tasks[-1])


def test_a_worker_that_is_killed_dies_and_the_others_go_on(stage):
    with stage.stream(Numbers(64)) as stream:
        killed, other = stream.start_workers(2)
        stream.measure(other)
        stream.make_ring([other])
        stage.call("stop_worker", killed, kill=True)
        assert stage.event("worker_died", killed)[2] == KILLED
        stream.fill_rows(other, step=3, slot=0)
        assert stream.batch(0)[1].tolist() == [12, 13, 14, 15]
        stage.call("assign", killed, _fill_nothing())
        stage.call("stop_worker", killed, kill=True)
        assert sum(each[:2] == ("worker_died", killed) for each in stage.told.events) == 1


@pytest.mark.parametrize("kill", [False, True])
def test_a_worker_that_is_stopped_before_it_is_ready_dies(stage, kill):
    with stage.stream(Numbers()) as stream:
        stream.loaded()
        stream.start_worker(worker := 1_000_010 + kill)
        stage.call("stop_worker", worker, kill=kill)
        stage.event("worker_died", worker)


def test_a_worker_that_is_at_an_endless_task_can_be_killed(stage):
    with stage.stream(Made(programs.endless)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        stream.assign(worker, (FILL_ROWS, 0, 1, 0, 4, 0))
        stage.call("stop_worker", worker, kill=True)
        stage.event("worker_died", worker, KILLED)


def test_what_is_done_is_told_before_the_next_task_which_may_be_endless(stage):
    with stage.stream(Made(programs.endless)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        first, _ = stream.assign(worker, (FILL_ROWS, 0, 0, 0, 1, 0), (FILL_ROWS, 0, 1, 0, 4, 1))
        assert stream.answer(worker, first)[0] == first


def test_what_a_worker_has_done_is_told_before_its_death_and_nothing_else(stage):
    """Though it has not read all that it was told."""
    with stage.stream(Made(programs.leaves_at_four)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        kept = len(stage.told.events)
        tasks = [(FILL_ROWS, 0, step, 0, 4, slot) for slot, step in enumerate((0, 0, 0, 1, 0))]
        done = stream.assign(worker, *tasks)[:3]
        stream.assign(worker, *tasks)
        stage.event("worker_died", worker, ProcessExit.exited(3))
        told = [
            row[0] for event, *said in stage.told.events[kept:] if event == "worker_message" for row in said[1].tasks
        ]
        assert told == done


def test_a_worker_that_something_else_kills_is_told_to_have_died(stage):
    with stage.stream(Made(programs.process_number)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        stream.fill_rows(worker, step=1, slot=0)
        pid = int(stream.batch(0)[0])
        assert pid != os.getpid()
        os.kill(pid, signal.SIGKILL)
        stage.event("worker_died", worker, KILLED)
        assert not psutil.pid_exists(pid), "its death is certain, and it was reaped"


def test_a_zygote_that_dies_takes_its_workers_along_and_is_told(stage):
    with stage.stream(Made(programs.process_number)) as stream:
        workers = stream.start_workers(2)
        stream.measure(workers[0])
        stream.make_ring(workers)
        stream.fill_rows(workers[0], step=1, slot=0)
        zygote = psutil.Process(int(stream.batch(0)[0])).parent()
        zygote.kill()
        for worker in workers:
            stage.event("worker_died", worker)
        stage.event("host_died", stream.host)


def test_after_a_stream_was_dropped_nothing_is_told_of_it(stage):
    """Dropped at each of its stages; another stream's whole life afterwards shows that all there was has come."""
    before = stage.stream(Numbers())
    stage.call("drop_stream", before.number)
    loading = stage.stream(Numbers()).loaded()
    loading.start_worker(1_000_020)
    stage.call("drop_stream", loading.number)
    filling = stage.stream(Made(programs.talkative))
    worker = filling.start_workers(1)[0]
    filling.assign(worker, *[(0, 0, step, 0, 4, 0) for step in range(8)])
    stage.call("stop_worker", worker, kill=False)
    stage.call("drop_stream", filling.number)
    unknown = 1_000_021
    stage.call("start_worker", unknown, 1_000_023, 1_000_022, 0, 1)
    stage.call("drop_stream", unknown)
    told = len(stage.told.events)

    with stage.stream(Numbers()) as other:
        (alive,) = other.start_workers(1)
        other.measure(alive)
        stage.call("stop_worker", alive, kill=False)
        stage.event("worker_died", alive)
    for event, number, *rest in stage.told.events[told:]:
        assert number in (other.number, other.host, alive), (event, number, rest)


def test_all_calls_about_what_is_gone_are_harmless(stage):
    with stage.stream(Numbers()) as stream:
        (worker,) = stream.start_workers(1)
    told = len(stage.told.events)
    stage.call("drop_stream", stream.number)
    stage.call("stop_worker", worker, kill=True)
    stage.call("stop_worker", worker, kill=False)
    stage.call("assign", worker, _fill_nothing())
    reading, writing = os.pipe()
    stage.call("lend_ring", worker, reading, b"")
    os.close(reading)
    os.close(writing)
    stage.call("retire_idle", 0.0)
    assert len(stage.told.events) == told


# --- what a worker is at ---


def test_a_workers_last_note_comes_with_its_death(stage):
    with stage.stream(Numbers(64)) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        (task,) = stream.assign(worker, (FILL_ROWS, 0, 1, 0, 4, 0))
        stream.answer(worker, task)
        assert (stage.note(worker).phase, stage.note(worker).task) == (IDLE, task)
        assert stage.pid(worker) > 0
        stage.call("stop_worker", worker, kill=False)
        note = stage.event("worker_died", worker)[3]
        assert (note.phase, note.task) == (IDLE, task)
        assert stage.note(worker) == NO_WORKER_STATUS, "it is gone"
        assert stage.pid(worker) == 0


def test_a_worker_that_dies_at_a_sample_has_noted_it(stage):
    with stage.stream(Made(programs.leaves_at_four), batch_size=3) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        (task,) = stream.assign(worker, (FILL_ROWS, 0, 1, 0, 3, 0))
        note = stage.event("worker_died", worker, ProcessExit.exited(3))[3]
        assert (note.task, note.phase, note.row, note.index) == (task, LOADING, 1, 4)


@pytest.mark.parametrize(
    "dataset", [Made(programs.endless), programs.StartsThread(programs.endless)], ids=["forked", "executed"]
)
def test_a_worker_that_is_stuck_can_be_looked_at(stage, dataset):
    with stage.stream(dataset) as stream:
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        (task,) = stream.assign(worker, (FILL_ROWS, 0, 2, 1, 4, 0))
        stage.until(lambda: stage.note(worker).row >= 0)
        note = stage.note(worker)
        assert (note.task, note.phase, note.row, note.index) == (task, LOADING, 1, 9)
        for _ in range(2):
            del stage.told.events[:]
            stage.call("look_at", stream.number, worker)
            look = stage.event("looked", stream.number, worker)[3]
            assert (look.pid, look.state) == (stage.pid(worker), "S")
            assert any(frame.endswith(" in endless") for frame in gist(look.stacks))
        assert not stage.has_told("worker_died"), "it lives"


def test_a_zygote_that_loads_for_ever_can_be_looked_at(executing_stage):
    stage = executing_stage
    with stage.stream(programs.Unloadable("wait")) as stream:

        def stack():
            del stage.told.events[:]
            stage.call("look_at", stream.number, 0)
            return gist(stage.event("looked", stream.number, 0)[3].stacks)

        # First it imports.
        while not any(frame.endswith(" in _fail") for frame in stack()):
            assert not stage.has_told("load_failed")


def test_who_is_gone_is_looked_at_in_vain(stage):
    with stage.stream(Numbers()) as stream:
        (worker,) = stream.start_workers(1)
        stage.call("stop_worker", worker, kill=True)
        stage.event("worker_died", worker)
        stage.call("look_at", stream.number, worker)
        assert stage.event("looked", stream.number, worker)[3].stacks == ""
    number = 1_000_040
    stage.call("look_at", number, 0)
    stage.event("looked", number, 0)


# --- processes ---


def test_workers_of_a_program_that_starts_threads_are_executed_anew(executing_stage):
    stage = executing_stage
    with stage.stream(programs.StartsThread(int)) as stream:
        assert "have started threads (" in stage.event("host_ready", stream.host)[2]
        (worker,) = stream.start_workers(1)
        stream.measure(worker)
        stream.make_ring([worker])
        stream.fill_rows(worker, step=1, slot=0)
        assert stream.batch(0).tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    "dataset",
    [Made(programs.process_number), programs.StartsThread(programs.process_number)],
    ids=["forked", "executed"],
)
def test_a_worker_has_no_descriptors_but_its_own(stage, dataset):
    """One that holds the end of another's socket or pipe keeps that one's death from being seen there."""
    with stage.stream(dataset) as stream:
        workers = stream.start_workers(3)
        stream.measure(workers[0])
        stream.make_ring(workers)
        pids = []
        for worker in workers:
            stream.fill_rows(worker, step=1, slot=0)
            pids.append(int(stream.batch(0)[0]))
        zygote = psutil.Process(pids[0]).ppid()
        # The trainer's end of a forked one.
        of_zygote = 3 if stage.start == "forked" else 2
        # For a moment it has one to its helper, which takes the fingerprint.
        held = {zygote: until(lambda: _if_channels(descriptors(zygote), of_zygote), "the zygote has its own")}
        held |= {pid: descriptors(pid) for pid in pids}
    channels = [channels_of(links) for links in held.values()]
    # Libraries that other tests have imported may have each child open something, as pyarrow does a pipe.
    of_worker = 2 + (opened_at_a_fork() if stage.start == "forked" else 0)
    assert [len(each) for each in channels] == [of_zygote, *3 * [of_worker]], "a socket to talk, a pipe for output"
    assert len(set.union(*channels)) == of_zygote + 3 * of_worker
    for pid, links in held.items():
        assert not any("spec" in link for link in links), "it was read"
        assert pid == zygote or not any("-program-" in link or "/dev/shm/#" in link for link in links), "it was loaded"
        for_others = {link for link, inheritable in links.items() if inheritable}
        assert for_others <= {"/dev/null", *(link for link in links if link.startswith("pipe:"))}


def _if_channels(links, number):
    return links if len(channels_of(links)) == number else None


@pytest.mark.parametrize("start", STARTS)
def test_close_leaves_no_process_and_tells_nothing(start, tmp_path):
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    stage = Stage(start, runtime_paths(tmp_path / "d.sock"))
    try:
        stream = stage.stream(Made(programs.endless))
        (worker,) = stream.start_workers(1)
        stream.assign(worker, (0, 0, 1, 0, 4, 0))
        # One that is only being started, and one that is only being loaded.
        stream.start_worker(1_000_030)
        streams = [stream, stage.stream(Numbers())]
        made = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
        assert len(made) >= 3
        pidfds = [os.pidfd_open(process.pid) for process in made]
        told = len(stage.told.events)
    finally:
        stage.close()
    wait_for_end(pidfds)
    for stream in streams:
        stream.let_go()
    assert len(stage.told.events) == told
    reap()
    left = {process.pid for process in psutil.Process().children(recursive=True)}
    assert left <= before, "not even a zombie"


def opened_at_a_fork() -> int:
    """How many sockets and pipes a plain child of this process has that this process has not."""
    own = channels_of(descriptors(os.getpid()))
    pid = os.fork()
    if pid == 0:
        os._exit(len(channels_of(descriptors(os.getpid())) - own))
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def channels_of(links: dict[str, bool]) -> set[str]:
    return {link for link in links if link.startswith(("socket:", "pipe:"))}


def descriptors(pid: int) -> dict[str, bool]:
    """What the process holds, and whether it leaves that to whatever it executes."""
    held = {}
    for fd in os.listdir(f"/proc/{pid}/fd"):
        # That of the listing itself is gone.
        with contextlib.suppress(FileNotFoundError):
            flags = int(Path(f"/proc/{pid}/fdinfo/{fd}").read_text().split("flags:")[1].split()[0], 8)
            held[os.readlink(f"/proc/{pid}/fd/{fd}")] = not flags & os.O_CLOEXEC
    return held


def _fill_nothing():
    return Fill(((1_000_099, FILL_WHOLE, 0, 0, 0, 1, 0),))
