"""Shared memory is full, or the memory cgroup has no more: errors with sizes, rings that stay small, others that yield,
and never SIGBUS."""

from __future__ import annotations

import re

import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.wire.errors import NoSpaceError
from tests.scenario.bad_datasets import Rows, Strings
from tests.scenario.memory_groups import kills_in, memory_group, start_in_group
from tests.scenario.small_rooms import in_a_small_room
from tests.scenario.watching import stream_when

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

        attempt("dataset", Holding(32))
        occupy(8 << 20)
        attempt("crowded", Rows(64, 16384), buffer="20MiB")
        os.unlink("/dev/shm/somebody-else")
        attempt("buffer", Rows(64, 16384), buffer="20MiB")
        """,
        daemon.environment,
    )
    assert said["dataset"].startswith("failed: the dataset takes 32 MiB of shared memory")
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
            PrefetchLoader(Rows(64, 16384), batch_size=4)
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
                PrefetchLoader(Rows(64, 16384), batch_size=4, stream="other")
            except NoSpaceError as error:
                print("other", error)
            print("end", next(iterator, "reached"))
        """,
        daemon.environment,
    )
    assert said["seen"] == "True"
    assert said["errors"].count("epoch 0, step 10") == 1
    assert "which cannot grow: shared memory is full" in said["errors"]
    assert "enlarge /dev/shm" in said["errors"]
    assert said["status"] == "0 healthy"
    assert "the dataset takes" in said["other"]
    assert said["end"] == "reached"


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
    with memory_group(800 * MIB) as group:
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
