"""Shared memory is full, or the memory cgroup has no more: errors with sizes, rings that stay small, others that yield,
and never SIGBUS."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from prefetchd_client import PrefetchLoader

from benchmarks.memory_groups import kills_in
from prefetchd.wire.errors import NoSpaceError
from tests.scenario.bad_datasets import Rows, Strings
from tests.scenario.memory_groups import memory_group, start_in_group
from tests.scenario.small_rooms import in_a_small_room
from tests.scenario.waiting import is_gone, stream_when, until

# --- a shared memory that is small, or full ---


def test_in_a_small_shared_memory_everything_says_what_it_needs(daemon):
    said = in_a_small_room(
        """
        class Holding(Rows):
            def __init__(self, mib):
                super().__init__(64, 16384)
                self.table = torch.zeros(mib << 20, dtype=torch.uint8)

        def attempt(name, dataset, **arguments):
            try:
                with PrefetchLoader(dataset, batch_size=4, stream="only", **arguments) as loader:
                    print(name, "made", len(list(loader)), "batches")
            except NoSpaceError as error:
                print(name, "failed:", error)

        attempt("forked", Holding(32))
        os.environ["PREFETCHD_START"] = "exec"
        attempt("dataset", Holding(36))
        occupy(8 << 20)
        attempt("crowded", Rows(64, 16384), buffer="20MiB")
        os.unlink("/dev/shm/somebody-else")
        attempt("buffer", Rows(64, 16384), buffer="20MiB")
        """,
        daemon.environment,
    )
    assert said["forked"] == "made 16 batches", "it takes no shared memory"
    assert said["dataset"].startswith("failed: the dataset takes 36 MiB of shared memory")
    assert "enlarge /dev/shm" in said["dataset"]
    assert said["buffer"] == "made 16 batches"
    assert re.search(
        r"needs 1\d\.\d MiB; /dev/shm has 1\d\.\d MiB left: lower buffer=, or enlarge /dev/shm \(docker: --shm-size\)",
        said["crowded"],
    )


def test_shared_memory_is_full_when_a_daemon_is_to_start(daemon):
    said = in_a_small_room(
        """
        occupy()
        try:
            list(PrefetchLoader(Rows(64, 16384), batch_size=4))
        except DaemonUnavailableError as error:
            print("loader", error)
        print("status", prefetchd("status").returncode)
        os.unlink("/dev/shm/somebody-else")
        with PrefetchLoader(Rows(64, 16384), batch_size=4) as loader:
            print("later", len(list(loader)), "batches")
        """,
        daemon.environment,
    )
    assert "the daemon did not start (exit 1)" in said["loader"]
    assert "shared memory is full" in said["loader"]
    assert "docker: --shm-size" in said["loader"]
    assert said["status"] == "4"
    assert said["later"] == "16 batches"


def test_shared_memory_fills_up_while_training(daemon):
    """The ring cannot grow with its batches any more: it stays as it is, and only what does not fit is an error."""
    said = in_a_small_room(
        """
        with PrefetchLoader(Strings(LENGTHS), batch_size=4, buffer=6, stream="running") as loader:
            iterator = iter(loader)
            seen, errors = take_while_full(iterator, occupy)
            print("seen", seen)
            print("errors", errors)
            status = prefetchd("status")
            print("status", status.returncode, status.stdout.split()[2])
            try:
                list(PrefetchLoader(Rows(64, 16384), batch_size=4, stream="other"))
            except NoSpaceError as error:
                print("other", error)
            print("end", next(iterator, "reached"))
        """,
        daemon.environment,
    )
    assert said["seen"] == "True"
    assert said["errors"].count("epoch 0, step 10") == 1
    assert "which cannot grow: a ring of 0.4 MiB wants" in said["errors"]
    assert "/dev/shm has 0 bytes left: enlarge /dev/shm" in said["errors"]
    assert said["status"] == "0 healthy"
    assert "/dev/shm has 0 bytes left" in said["other"]
    assert said["end"] == "reached"


def test_shared_memory_that_was_full_once_is_used_when_it_is_free_again(daemon):
    said = in_a_small_room(
        """
        with PrefetchLoader(Strings(LENGTHS + LENGTHS), batch_size=4, buffer=6) as loader:
            iterator = iter(loader)
            seen, errors = take_while_full(iterator, occupy)
            print("errors", len(errors))
            os.unlink("/dev/shm/somebody-else")
            print("seen", seen and [len(batch[0]) for batch in iterator] == LENGTHS[::4])
        """,
        daemon.environment,
    )
    assert said["errors"] == "1"
    assert said["seen"] == "True"


def test_a_ring_that_lingers_yields_its_shared_memory(daemon):
    said = in_a_small_room(
        """
        for name in ("one", "two", "three"):
            with PrefetchLoader(Rows(64, 16384), batch_size=4, buffer="14MiB", stream=name) as loader:
                print(name, len(list(loader)), "batches")
        """,
        daemon.environment,
    )
    assert [said[name] for name in ("one", "two", "three")] == ["16 batches"] * 3


# --- a memory cgroup with a limit ---

MIB = 1 << 20


def test_a_ring_that_is_more_than_the_cgroup_has_left_is_told_and_one_that_lingers_yields(daemon):
    with memory_group(800 * MIB) as group:
        start_in_group(daemon, group, "--workers", "1")
        with (
            PrefetchLoader(Rows(64, MIB // 32), batch_size=4, buffer="900MiB", stream="vast") as loader,
            pytest.raises(
                NoSpaceError, match=r"needs 899\.\d MiB; the cgroup has [\d.]+ MiB left: lower buffer="
            ) as caught,
        ):
            next(iter(loader))
        left = float(str(caught.value).split("the cgroup has ")[1].split()[0])
        for name in ("one", "two"):
            arguments = {"batch_size": 4, "buffer": f"{0.6 * left:.0f}MiB", "stream": name}
            with PrefetchLoader(Rows(64, MIB // 32), **arguments) as loader:
                assert len(list(loader)) == 16
                segments = stream_when(daemon, name, lambda stream: stream["ring"])["ring"]["segment"]
        assert [f"/{each}" for each in daemon.segments() if "-ring-" in each] == [segments], "the first ring has gone"
        assert kills_in(group) == 0
        daemon.stop_and_check()


def test_a_ring_that_grows_stops_before_the_cgroup_s_limit(daemon):
    """Nobody is killed for it: a ring that cannot grow stays as it is."""
    with memory_group(400 * MIB) as group:
        start_in_group(daemon, group, "--workers", "1")
        pid = daemon.pid
        lengths = [MIB // 64] * 64 + [MIB // 4] * 2400
        with PrefetchLoader(Strings(lengths), batch_size=4, buffer=512, stream="grows") as loader:
            assert [len(batch[0]) for batch in loader] == lengths[::4]
            stream = stream_when(daemon, "grows")
        assert stream["worker_deaths"] == 0
        assert kills_in(group) == 0
        assert daemon.pid == pid
        assert '"ring stays small"' in daemon.paths.log.read_text()
        daemon.stop_and_check()


KILLED = """
import os, sys, time, numpy as np
from prefetchd_client import PrefetchLoader
class Rows:
    def __init__(self):
        self.table = np.ones((300, 1 << 20), np.uint8)
    def __len__(self):
        return 6000
    def __getitem__(self, index):
        time.sleep(0.02)
        return self.table[index % 300, :1024]
loader = PrefetchLoader(Rows(), batch_size=4, buffer=500, num_workers=1, stream="large")
print(loader.fingerprint, flush=True)
next(iter(loader))
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_dead_trainer_s_memory_is_given_back_where_there_is_no_room_for_its_program(daemon):
    """Found as a dataset that was written to shared memory beside the fork of the killed trainer that had it: twice as
    much for nobody, and the kernel's kill for it."""
    with memory_group(800 * MIB) as group:
        daemon.start()
        command = f"echo $$ > {group}/cgroup.procs; exec {sys.executable} -c '{KILLED}'"
        with subprocess.Popen(
            ["sh", "-c", command], env=daemon.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as trainer:
            assert trainer.stdout is not None
            trainer.stdout.readline()
            assert trainer.stdout.readline() == b"ready\n"
            daemon.command("pause", "large")
            zygotes = [each.pid for each in daemon.processes() if each.name() == "prefetchd-zyg"]
            trainer.kill()
            trainer.wait()
            stream_when(daemon, "large", lambda stream: stream["lingering"])
            daemon.command("resume", "large")
            until(lambda: all(map(is_gone, zygotes)), "its memory is given back")
        found = stream_when(daemon, "large", lambda stream: stream["stage"] == "parked")
        assert not found["program_kept"]
        assert found["ring"]["ready"] > 0
        assert kills_in(group) == 0
        daemon.stop_and_check()
