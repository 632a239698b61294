"""Somebody removes what a daemon and its rings are found by, while they are in use: the run goes on, and what can be
made again is."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Numbers
from tests.scenario.waiting import is_gone, report_when, stopped, stream_when, until


def segment(daemon, kind: str) -> Path:
    """The only one of its kind."""
    (name,) = (name for name in daemon.segments() if f"-{kind}-" in name)
    return Path("/dev/shm", name)


def ring_is(removed: bool):
    """Of a stream: its ring is there, and its name has been removed, or not."""
    return lambda stream: stream["ring"] is not None and stream["ring"]["name_removed"] is removed


def kill(daemon) -> None:
    pid = daemon.pid
    os.kill(pid, signal.SIGKILL)
    until(lambda: is_gone(pid), "the daemon is dead")


def all_follow(iterator, step: int, steps: int = 100) -> bool:
    """The rest of an epoch of Numbers in batches of 4."""
    return [index[0].item() for _, index in iterator] == [4 * each for each in range(step, steps)]


def remove_socket(daemon) -> None:
    daemon.socket.unlink()


def remove_lock(daemon) -> None:
    daemon.paths.lock.unlink()


def remove_status(daemon) -> None:
    os.unlink("/dev/shm" + daemon.paths.status_segment)


def is_whole(daemon, pid: int) -> bool:
    """The daemon of that pid is found by all that it should be found by."""
    if not (daemon.socket.exists() and daemon.paths.lock.exists() and daemon.segments()):
        return False
    return report_when(daemon, lambda report: report.state == "running", "it runs").snapshot["daemon"]["pid"] == pid


@pytest.mark.parametrize("remove", [remove_socket, remove_lock, remove_status])
def test_what_a_daemon_is_found_by_is_made_again(shared_daemon, remove):
    shared_daemon.start()
    pid = shared_daemon.pid
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="running") as loader:
        iterator = iter(loader)
        next(iterator)
        remove(shared_daemon)
        with PrefetchLoader(Numbers(40), batch_size=4, buffer=8, stream="new") as newcomer:
            assert all_follow(iter(newcomer), 0, 10)
        until(lambda: is_whole(shared_daemon, pid), "all is there again")
        assert all_follow(iterator, 1)
        assert loader.stats()["reconnections"] == 0
        assert shared_daemon.command("run", "--detach").stdout.endswith("already\n")
    assert shared_daemon.pid == pid


def test_the_directory_is_removed_and_a_new_trainer_comes_at_once(daemon):
    """To the daemon that was there, or to one that took its place: then the former ends, and its trainers follow."""
    daemon.start()
    former = daemon.pid
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="running") as loader:
        iterator = iter(loader)
        next(iterator)
        shutil.rmtree(daemon.socket.parent)
        with PrefetchLoader(Numbers(40), batch_size=4, buffer=8, stream="new") as newcomer:
            assert all_follow(iter(newcomer), 0, 10)
        assert all_follow(iterator, 1)
        until(lambda: is_gone(former) or is_whole(daemon, former), "there is one daemon")


def test_a_daemon_whose_place_was_taken_ends_and_its_trainers_go_over(daemon):
    daemon.start()
    former = daemon.pid
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="running") as loader:
        iterator = iter(loader)
        kept, _ = next(iterator)
        with stopped(daemon):
            shutil.rmtree(daemon.socket.parent)
            os.mkdir(daemon.socket.parent, 0o700)
            daemon.start()
            latter = daemon.pid
            assert latter != former
        until(lambda: is_gone(former), "the former one has ended")
        assert is_whole(daemon, latter), "it has taken nothing of the latter with it"
        assert all_follow(iterator, 1)
        assert loader.stats()["reconnections"] == 1
        assert kept[:, 0].tolist() == [0, 1, 2, 3]


def test_a_daemon_whose_lock_file_was_removed_keeps_others_from_its_place(daemon):
    """Not even its status segment is replaced."""
    daemon.start()
    pid = daemon.pid
    with stopped(daemon):
        daemon.paths.lock.unlink()
        before = os.stat("/dev/shm" + daemon.paths.status_segment).st_ino
        assert daemon.command("run", "--detach").stdout == f"a daemon serves {daemon.socket} already\n"
        assert os.stat("/dev/shm" + daemon.paths.status_segment).st_ino == before
    until(lambda: is_whole(daemon, pid), "its lock file is there again")


def test_a_ring_s_name_is_removed_the_run_goes_on_and_status_warns(daemon):
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="running") as loader:
        iterator = iter(loader)
        kept, _ = next(iterator)
        assert "was removed" not in daemon.command("status").stdout
        path = segment(daemon, "ring")
        path.unlink()
        stream_when(daemon, "running", ring_is(removed=True), "status knows")
        said = daemon.command("status", check=False).stdout
        assert f"/{path.name} was removed from /dev/shm: the run goes on" in said
        assert "loginctl enable-linger" in said
        for step in range(1, 20):
            assert next(iterator)[1][0] == 4 * step
        kill(daemon)
        # Nobody finds the ring any more: the next daemon makes another.
        assert all_follow(iterator, 20)
        assert segment(daemon, "ring").name != path.name
        stream_when(daemon, "running", ring_is(removed=False), "its ring has a name")
        assert kept[:, 0].tolist() == [0, 1, 2, 3]


def test_a_program_s_name_is_removed_and_it_is_handed_over_again_when_needed(daemon):
    daemon.start()
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="running") as loader:
        iterator = iter(loader)
        next(iterator)
        until(lambda: any("-program-" in name for name in daemon.segments()), "its fork has written the program")
        segment(daemon, "program").unlink()
        for step in range(1, 20):
            assert next(iterator)[1][0] == 4 * step
        kill(daemon)
        assert all_follow(iterator, 20)
        assert segment(daemon, "program").exists()


def test_every_name_is_removed_at_once_as_at_a_logout(daemon):
    """RemoveIPC and the end of $XDG_RUNTIME_DIR: the run goes on, and so does whoever comes after it."""
    daemon.start()
    pid = daemon.pid
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="running") as loader:
        iterator = iter(loader)
        next(iterator)
        for name in daemon.segments():
            os.unlink("/dev/shm/" + name)
        shutil.rmtree(daemon.socket.parent)
        assert all_follow(iterator, 1)
        until(lambda: is_whole(daemon, pid), "the daemon is found again")
        stream_when(daemon, "running", ring_is(removed=True), "status knows")
    with PrefetchLoader(Numbers(400), batch_size=4, buffer=8, stream="running") as again:
        assert all_follow(iter(again), 0)
