"""A forked zygote between its masters: the daemon, whose part this process plays, and the trainer, which it is."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import multiprocessing.util
import os
import select
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from prefetchd_client.forking import trainer_fork
from prefetchd_client.forking.trainer_fork import ForkRequest, TrainerFork

from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.framing import close_all, receive_with_fds, send
from prefetchd.wire.messages import (
    Identified,
    Message,
    NotSpawned,
    Ready,
    Spare,
    Spawned,
    SpawnWorker,
    TooLarge,
    Unpicklable,
    UseNote,
    WriteProgram,
)
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers import detaching, program_size
from prefetchd.workers import forked_zygote as forked_zygote_module
from tests.scenario.datasets import Numbers
from tests.scenario.waiting import is_gone, until

FINGERPRINT = "c0" * 16
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
SPEC = StreamSpec("0" * 32, seed=7, order="sequential", length=24, batch_size=4)


class Control:
    """The daemon's end of a forked zygote."""

    def __init__(self, fork: TrainerFork) -> None:
        """Of the fork as it was made, or of the next daemon."""
        handed = fork.hand_over()
        assert handed is not None, "the fork is dead"
        _, (pidfd, control, output) = handed
        self._fork = fork
        self.pid = fork.pid
        self._next: Control | None = None
        self._fds = [pidfd, output]
        self._sock = socket.socket(fileno=control)
        self._note = WorkerStatusFile()
        self._sock.settimeout(30)

    def say(self, message: Message) -> None:
        send(self._sock, message, [self._note.fd])

    def heard(self, kind: type[Message]) -> Message:
        """The next message of this kind; others are left aside, and their descriptors closed. A worker's stay open: it
        ends with its socket."""
        while True:
            message, fds = receive_with_fds(self._sock)
            if isinstance(message, Spawned):
                self._fds += fds
            else:
                close_all(fds)
            assert message is not None, "the zygote has ended"
            if isinstance(message, kind):
                return message

    def printed(self, text: str) -> None:
        """Waits until the zygote, or a child of it, has printed this."""
        said = ""
        while text not in said:
            poll = select.poll()
            poll.register(self._fds[1], select.POLLIN)
            assert poll.poll(30_000), f"it has printed {said!r}"
            more = os.read(self._fds[1], 1 << 16).decode()
            assert more, f"it has printed {said!r}, and ended"
            said += more

    def next_daemon(self) -> Control:
        """This one dies, and another one has the fork; it dies when this one is told to once more."""
        self.die()
        self._next = Control(self._fork)
        return self._next

    def die(self) -> None:
        """Idempotent."""
        if self._next is not None:
            self._next.die()
        if not self._fds:
            return
        self._sock.close()
        close_all(self._fds)
        self._fds = []
        self._note.close()


def forked_zygote(
    directory: Path, dataset: object = None, fingerprint: Callable[[], str] = lambda: FINGERPRINT, *, asked: bool = True
) -> TrainerFork:
    """Its trainer has `asked` for the fingerprint, or waits for nothing."""
    parts = {"dataset": dataset if dataset is not None else Numbers(24), "collate_fn": None, "worker_init_fn": None}
    paths = runtime_paths(directory / "d.sock")
    made, _ = ForkRequest(paths, SPEC, parts, fingerprint, lambda: b"", lambda: None).begin()
    if asked:
        made.ask()
    return made


@pytest.fixture
def fork(tmp_path) -> Iterator[TrainerFork]:
    made = forked_zygote(tmp_path)
    yield made
    made.close()
    until(lambda: is_gone(made.pid), "a fork without masters ends")


@pytest.fixture
def daemon_of(fork) -> Iterator[Control]:
    control = Control(fork)
    control.say(UseNote())
    control.heard(Ready)
    control.heard(Identified)
    yield control
    control.die()


@contextlib.contextmanager
def ended(fork: TrainerFork) -> Iterator[Control]:
    """A daemon of the fork, which ends with it."""
    control = Control(fork)
    try:
        yield control
    finally:
        control.die()
        fork.close()
        until(lambda: is_gone(fork.pid), "a fork without masters ends")


def spawned(control: Control, worker: int) -> int:
    control.say(SpawnWorker(worker, 0, 1))
    message = control.heard(Spawned)
    assert isinstance(message, Spawned)
    return message.pid


def children_of(fork: TrainerFork) -> list[int]:
    return [each.pid for each in psutil.Process(fork.pid).children()]


def goes_on(fork: TrainerFork) -> None:
    """Another daemon is served."""
    following = Control(fork)
    try:
        following.heard(Ready)
        assert following.heard(Identified) == Identified(FINGERPRINT)
        worker = spawned(following, 7)
        until(
            lambda: [each.pid for each in psutil.Process(fork.pid).children()] == [worker], "it has no other children"
        )
    finally:
        following.die()


def test_a_dataset_of_any_objects_is_carried(tmp_path):
    """Found as a fork that died at birth of a proxy whose __class__ raised."""
    with socket.socket():
        made = forked_zygote(tmp_path, [NoClass()])
    try:
        control = Control(made)
        control.heard(Ready)
        control.die()
    finally:
        made.close()
    until(lambda: is_gone(made.pid), "it ends")


class NoClass:
    @property
    def __class__(self):
        raise LookupError("what it stands for is not there")


# --- what is the trainer's ---


@pytest.fixture
def trainer_s_signals() -> Iterator[None]:
    """Handlers for SIGUSR1 and SIGCHLD, and SIGTERM ignored."""
    former = {each: signal.getsignal(each) for each in (signal.SIGUSR1, signal.SIGCHLD, signal.SIGTERM)}
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def signals_of(pid: int, which: str) -> set[int]:
    """Those that the process catches ("SigCgt") or ignores ("SigIgn"), as the kernel has it; but for libc's own."""
    mask = int(Path(f"/proc/{pid}/status").read_text().split(f"{which}:")[1].split()[0], 16)
    return {number for number in signal.valid_signals() if mask >> (number - 1) & 1}


@pytest.mark.usefixtures("trainer_s_signals")
def test_no_signal_is_taken_as_the_trainer_takes_it(tmp_path):
    with ended(forked_zygote(tmp_path)) as control:
        control.heard(Ready)
        assert signals_of(control.pid, "SigCgt") == set()
        ignored = signals_of(control.pid, "SigIgn")
        assert signal.SIGINT in ignored, "it is the daemon that a terminal's Ctrl-C ends"
        assert signal.SIGTERM not in ignored


def seen_in_the_fork(directory: Path, monkeypatch: pytest.MonkeyPatch, look: Callable[[], object]) -> str:
    """What look() gives in a fork that has left its trainer and has ended by now, as text."""
    seen = directory / "seen"
    monkeypatch.setattr(trainer_fork, "run_fork_hooks", lambda: seen.write_text(str(look())))
    with ended(forked_zygote(directory)) as control:
        control.heard(Ready)
    return seen.read_text()


def test_the_signal_for_the_death_of_the_trainers_parent_is_not_the_forks(tmp_path, monkeypatch):
    """Without a trainer it goes on for the daemon."""

    def death_signal() -> int:
        found = ctypes.c_int(-1)
        prctl(PR_GET_PDEATHSIG, ctypes.byref(found))
        return found.value

    prctl = ctypes.CDLL(None).prctl
    former = death_signal()
    prctl(PR_SET_PDEATHSIG, signal.SIGWINCH)
    try:
        assert seen_in_the_fork(tmp_path, monkeypatch, death_signal) == "0"
        assert death_signal() == signal.SIGWINCH
    finally:
        prctl(PR_SET_PDEATHSIG, former)


def test_what_multiprocessing_is_to_do_at_the_trainers_end_is_not_the_forks(tmp_path, monkeypatch):
    """Nor does the fork keep what that holds in memory."""
    file = tmp_path / "done"
    finalizer = multiprocessing.util.Finalize(None, file.touch, exitpriority=0)
    try:
        assert seen_in_the_fork(tmp_path, monkeypatch, finalizer.still_active) == "False"
        assert not file.exists()
        assert finalizer.still_active()
    finally:
        finalizer.cancel()


def test_no_device_of_the_trainers_is_mapped(tmp_path, monkeypatch):
    """Another one than a GPU stands for it."""
    monkeypatch.setattr(detaching, "GIVEN_BACK", rb"/dev/zero$")
    with contextlib.ExitStack() as opened:
        device = opened.enter_context(open("/dev/zero", "r+b"))
        opened.enter_context(mmap.mmap(device.fileno(), mmap.PAGESIZE, mmap.MAP_PRIVATE))
        control = opened.enter_context(ended(forked_zygote(tmp_path)))
        control.heard(Ready)
        assert "/dev/zero\n" in Path("/proc/self/maps").read_text()
        assert "/dev/zero\n" not in Path(f"/proc/{control.pid}/maps").read_text()


# --- the daemon's death ---


def test_it_outlives_a_daemon_that_dies_with_a_worker(fork, daemon_of):
    """Found as a trainer whose fork died with its daemon: the worker's death was to be told to nobody."""
    worker = spawned(daemon_of, 1)
    os.kill(fork.pid, signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    until(lambda: is_gone(worker), "the worker is dead")
    daemon_of.die()
    os.kill(fork.pid, signal.SIGCONT)
    goes_on(fork)


def test_it_outlives_a_daemon_that_has_asked_for_a_worker_and_died(fork, daemon_of):
    os.kill(fork.pid, signal.SIGSTOP)
    daemon_of.say(SpawnWorker(1, 0, 1))
    daemon_of.die()
    os.kill(fork.pid, signal.SIGCONT)
    goes_on(fork)


# --- no process can be had ---


@pytest.fixture
def scarce(tmp_path, monkeypatch) -> Iterator[Path]:
    """While this file exists no process but this one can fork, as with a limit on processes."""
    file, trainer, fork = tmp_path / "scarce", os.getpid(), os.fork

    def fork_or_fail() -> int:
        if file.exists() and os.getpid() != trainer:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(os, "fork", fork_or_fail)
    return file


def test_a_worker_that_cannot_be_forked_is_told_and_the_zygote_goes_on(scarce, fork, daemon_of):
    """Found as a zygote that ended with a traceback, and a stream whose zygote died again and again."""
    first = spawned(daemon_of, 1)
    scarce.touch()
    daemon_of.say(SpawnWorker(2, 0, 1))
    assert daemon_of.heard(NotSpawned) == NotSpawned(2, "Resource temporarily unavailable")
    until(lambda: children_of(fork) == [first], "nobody else is there")
    before = len(os.listdir(f"/proc/{fork.pid}/fd"))
    daemon_of.say(SpawnWorker(3, 0, 1))
    daemon_of.heard(NotSpawned)
    until(lambda: len(os.listdir(f"/proc/{fork.pid}/fd")) <= before, "nothing is left open of those that fail")
    scarce.unlink()
    spawned(daemon_of, 4)


def test_the_fingerprint_is_taken_when_a_process_can_be_had(scarce, tmp_path):
    scarce.touch()
    with ended(forked_zygote(tmp_path)) as control:
        control.heard(Ready)
        control.printed("no process can be forked to take the dataset's fingerprint: Resource temporarily unavailable")
        scarce.unlink()
        assert control.heard(Identified) == Identified(FINGERPRINT)


def test_the_spare_is_forked_when_a_process_can_be_had(scarce, tmp_path):
    """Found as a spare that could not be forked and took the zygote that serves with it."""
    with ended(forked_zygote(tmp_path, threading.Lock())) as control:
        control.say(UseNote())
        control.heard(Identified)
        control.say(WriteProgram())
        control.heard(Unpicklable)
        control.heard(Spare)
        scarce.touch()
        following = control.next_daemon()
        following.heard(Unpicklable)
        following.printed("no process can be forked to have the dataset in reserve: Resource temporarily unavailable")
        scarce.unlink()
        following.heard(Spare)


def test_a_program_is_written_when_a_process_can_be_had(scarce, fork, daemon_of):
    scarce.touch()
    daemon_of.say(WriteProgram(limit_bytes=1))
    daemon_of.printed("no process can be forked to pickle the dataset: Resource temporarily unavailable")
    scarce.unlink()
    daemon_of.heard(TooLarge)


# --- when the fingerprint is taken ---


@pytest.fixture
def late(monkeypatch) -> None:
    """No fork takes its fingerprint of its own accord while a test lasts."""
    monkeypatch.setattr(forked_zygote_module, "IDENTIFY_AFTER_S", 3600.0)
    monkeypatch.setattr(forked_zygote_module, "IDENTIFY_WITHIN_S", 3600.0)


def test_the_first_worker_is_the_first_process_that_is_forked(late, tmp_path):
    """Large data is digested after the first batches: that takes the CPU that these need."""
    made = forked_zygote(tmp_path, asked=False)
    with ended(made) as control:
        control.heard(Ready)
        worker = spawned(control, 1)
        assert children_of(made) == [worker]
        made.ask()
        assert control.heard(Identified) == Identified(FINGERPRINT)
        made.ask()
        another = spawned(control, 2)
        until(lambda: set(children_of(made)) == {worker, another}, "nobody takes it twice")


@pytest.mark.parametrize(
    ("after_s", "within_s"), [(0.0, 3600.0), (3600.0, 0.0)], ids=["after a worker", "after a time"]
)
def test_nobody_has_to_ask_for_the_fingerprint(tmp_path, monkeypatch, after_s, within_s):
    monkeypatch.setattr(forked_zygote_module, "IDENTIFY_AFTER_S", after_s)
    monkeypatch.setattr(forked_zygote_module, "IDENTIFY_WITHIN_S", within_s)
    with ended(forked_zygote(tmp_path, asked=False)) as control:
        if within_s:
            spawned(control, 1)
        assert control.heard(Identified) == Identified(FINGERPRINT)


def test_the_fingerprint_is_taken_when_the_trainer_has_gone(late, tmp_path):
    made = forked_zygote(tmp_path, asked=False)
    with ended(made) as control:
        made.close()
        assert control.heard(Identified) == Identified(FINGERPRINT)


def test_the_fingerprint_is_taken_for_the_next_daemon(late, tmp_path):
    with ended(forked_zygote(tmp_path, asked=False)) as control:
        control.heard(Ready)
        assert control.next_daemon().heard(Identified) == Identified(FINGERPRINT)


# --- what dies at its work ---


def test_a_fingerprint_that_ends_each_process_is_given_up_and_the_zygote_serves(tmp_path):
    made = forked_zygote(tmp_path, fingerprint=lambda: os.kill(os.getpid(), signal.SIGKILL))
    with ended(made) as control:
        control.say(UseNote())
        control.printed("3 processes died that were to take the dataset's fingerprint: it is not done")
        assert control.heard(Identified) == Identified("")
        spawned(control, 1)
        following = control.next_daemon()
        assert following.heard(Identified) == Identified("")


def test_a_fingerprint_whose_process_is_killed_once_is_taken_by_another(tmp_path):
    is_first = tmp_path / "first"
    is_first.touch()

    def fingerprint() -> str:
        if is_first.exists():
            is_first.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return FINGERPRINT

    with ended(forked_zygote(tmp_path, fingerprint=fingerprint)) as control:
        assert control.heard(Identified) == Identified(FINGERPRINT)


def test_a_dataset_whose_pickling_ends_each_process_is_carried_by_fork(tmp_path):
    with ended(forked_zygote(tmp_path, Deadly())) as control:
        control.heard(Identified)
        control.say(WriteProgram())
        refusal = control.heard(Unpicklable)
        assert isinstance(refusal, Unpicklable)
        assert "the processes died that were to pickle it" in refusal.reason


class Deadly:
    def __reduce__(self):
        os.kill(os.getpid(), signal.SIGKILL)


# --- what is large ---

MANY = 70_000


class Counted:
    """A KiB, which counts in a file how often it is pickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        with self.file.open("ab") as file:
            file.write(b".")
        return bytes, (bytes(1024),)


@pytest.mark.parametrize("long", [list, tuple, set, dict.fromkeys], ids=["list", "tuple", "set", "dict"])
def test_a_long_table_is_found_too_large_by_a_few_of_its_rows(tmp_path, long):
    """Found as a process that pickled five million texts before each epoch."""
    dataset = {"table": long([Counted(tmp_path / "count") for _ in range(MANY)]), "small": [1, 2]}
    with ended(forked_zygote(tmp_path, dataset)) as control:
        control.say(WriteProgram(limit_bytes=32 << 20))
        message = control.heard(TooLarge)
        assert isinstance(message, TooLarge)
        assert abs(message.buffer_bytes / (MANY << 10) - 1) < 0.1
        assert (tmp_path / "count").stat().st_size < MANY / 100
        control.heard(Spare)


def test_what_is_not_in_long_tables_is_pickled_up_to_the_limit(tmp_path):
    dataset = [[Counted(tmp_path / "count") for _ in range(900)] for _ in range(30)]
    with ended(forked_zygote(tmp_path, dataset)) as control:
        control.say(WriteProgram(limit_bytes=1 << 20))
        control.heard(TooLarge)
        assert 500 < (tmp_path / "count").stat().st_size < 3000


def test_a_large_one_that_cannot_be_pickled_is_told_as_such(tmp_path):
    with ended(forked_zygote(tmp_path, {"table": bytearray(2 << 20), "lock": threading.Lock()})) as control:
        control.say(WriteProgram(limit_bytes=4 << 20))
        control.heard(Unpicklable)


# --- without its trainer ---


def test_it_is_the_first_to_go_for_memory_when_its_trainer_has_gone(fork, daemon_of):
    """It has a dead trainer's memory."""
    score = Path(f"/proc/{fork.pid}/oom_score_adj")
    before = int(score.read_text())
    fork.close()
    until(lambda: int(score.read_text()) > before, "it is")
    assert int(score.read_text()) == 500


def test_a_program_for_which_there_is_no_room_is_not_written(tmp_path, monkeypatch):
    """Nor is another process forked that would have the same memory."""
    monkeypatch.setattr(program_size, "free_bytes", lambda _: 2 << 20)
    made = forked_zygote(tmp_path, {"array": np.zeros(4 << 20, np.uint8)})
    with ended(made) as control:
        control.heard(Identified)
        made.close()
        control.say(WriteProgram())
        message = control.heard(TooLarge)
        assert isinstance(message, TooLarge)
        assert message.buffer_bytes >= 4 << 20
        until(lambda: not children_of(made), "it has no child")
