"""What does not fit: errors with the sizes and the knob, at once, and a stream that goes on where it can."""

from __future__ import annotations

import os
import resource

import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.wire.errors import BatchTooLargeError, BufferTooSmallError, NoSpaceError
from tests.conftest import daemon_aside
from tests.scenario.bad_datasets import Rows, Strings, Zeros
from tests.scenario.datasets import Numbers
from tests.scenario.waiting import stream_when, until

MIB = 1 << 20

pytestmark = pytest.mark.usefixtures("shared_daemon")


def free_mib():
    found = os.statvfs("/dev/shm")
    return found.f_bavail * found.f_frsize // MIB


# --- the ring ---


@pytest.mark.parametrize("unit", ["bytes", "batches"])
def test_a_buffer_larger_than_shared_memory_is_told_with_sizes_and_knob(unit, shared_daemon):
    too_much = 2 * free_mib()
    buffer = f"{too_much}MiB" if unit == "bytes" else too_much
    with PrefetchLoader(Rows(64, MIB // 32), batch_size=4, buffer=buffer, stream="vast") as loader:
        for _ in range(2):
            with pytest.raises(NoSpaceError) as caught:
                next(iter(loader))
            asked = f"{too_much:,}.0 MiB" if unit == "bytes" else f"{too_much} batches"
            assert f"buffer={asked} needs " in str(caught.value)
            assert " MiB; /dev/shm has " in str(caught.value)
            assert "MiB left: lower buffer=" in str(caught.value)
    with PrefetchLoader(Rows(64, MIB // 32), batch_size=4, buffer=8, stream="vast") as loader:
        assert len(list(loader)) == 16, "the name can be used again"


def test_a_buffer_for_fewer_than_four_batches_is_told_with_sizes_and_knob():
    with (
        PrefetchLoader(Rows(64, MIB // 32), batch_size=4, buffer="3MiB") as loader,
        pytest.raises(BufferTooSmallError) as caught,
    ):
        next(iter(loader))
    assert "buffer=3.0 MiB holds 2 batches of 1.0 MiB" in str(caught.value)
    assert "allowed: at least 4" in str(caught.value)
    assert "Set buffer= to 4." in str(caught.value)


def test_a_ring_that_cannot_be_made_fails_its_stream_alone(shared_daemon):
    """The kernel refuses a file of that size, though there seems to be room."""
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=6) as neighbour:
        next(iter(neighbour))
        pid = shared_daemon.pid
        before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (8 * MIB, before[1]))
        try:
            with (
                PrefetchLoader(Rows(64, MIB // 32), batch_size=4, buffer=16) as loader,
                pytest.raises(NoSpaceError, match="buffer="),
            ):
                next(iter(loader))
        finally:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
        assert len(list(neighbour)) == 10
        assert shared_daemon.pid == pid


def test_failed_streams_leave_no_segment(shared_daemon):
    before = set(shared_daemon.segments())
    for _ in range(3):
        with (
            PrefetchLoader(Rows(8, MIB // 32), batch_size=4, buffer=f"{2 * free_mib()}MiB") as loader,
            pytest.raises(NoSpaceError),
        ):
            next(iter(loader))
    until(lambda: set(shared_daemon.segments()) <= before, "the segments of the failed streams are gone")


# --- the daemon's own limit ---


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """A daemon that may use 24 MiB for all its rings."""
    with daemon_aside(tmp_path_factory.mktemp("bounded")) as daemon:
        daemon.start("--memory", "24MiB", "--workers", "2")
        yield str(daemon.socket)


def test_the_daemon_s_memory_bounds_all_rings_together(bounded):
    arguments = {"batch_size": 4, "buffer": "16MiB", "socket": bounded}
    with PrefetchLoader(Rows(256, MIB // 32), stream="one", **arguments) as one:
        next(iter(one))
        with (
            PrefetchLoader(Rows(256, MIB // 32), stream="two", **arguments) as two,
            pytest.raises(NoSpaceError) as caught,
        ):
            next(iter(two))
        assert "the daemon's memory setting has 8." in str(caught.value)
        assert "lower buffer=, or raise --memory" in str(caught.value)
        with PrefetchLoader(Rows(256, MIB // 32), stream="three", **arguments | {"buffer": "6MiB"}) as three:
            assert len(list(three)) == 64
        assert len(list(one)) == 64


def test_a_ring_of_which_nobody_has_said_how_large_leaves_room_for_others(bounded):
    loaders = [
        PrefetchLoader(Rows(256, MIB // 32), batch_size=4, stream=name, socket=bounded) for name in ("four", "five")
    ]
    assert [len(list(loader)) for loader in loaders] == [64, 64]
    for loader in loaders:
        loader.close()


def test_a_ring_without_a_consumer_yields_to_one_that_has_one(bounded):
    for name in ("four", "five", "six"):
        with PrefetchLoader(Rows(64, MIB // 32), batch_size=4, buffer="16MiB", stream=name, socket=bounded) as loader:
            assert len(list(loader)) == 16


# --- one batch ---


def test_a_batch_larger_than_its_slot_takes_several():
    lengths = [100] * 8 + [100_000] * 4 + [100] * 4 + [300_000] * 4 + [100] * 12
    with PrefetchLoader(Strings(lengths), batch_size=4, buffer="8MiB", shuffle=False) as loader:
        for _ in range(3):
            assert [list(map(len, batch)) for batch in loader] == [lengths[at : at + 4] for at in range(0, 32, 4)]


@pytest.mark.parametrize(
    "lengths",
    [[1, 2, 60_000, 1, 5, 400_000], [100] * 40 + [40 * MIB] + [100] * 40, [1] + [300_000] * 60],
    ids=["growing", "one outlier", "all but the first"],
)
@pytest.mark.parametrize("buffer", [{}, {"buffer": 8}], ids=["default", "batches"])
@pytest.mark.parametrize("batch_size", [1, None])
@pytest.mark.parametrize("samples", [Strings, Zeros])
def test_a_ring_that_was_measured_by_a_small_batch_grows(samples, batch_size, lengths, buffer):
    """Also where the first one gives a layout of rows that the others do not fit."""
    with PrefetchLoader(samples(lengths), batch_size=batch_size, **buffer) as loader:
        for _ in range(2):
            assert [len(batch if batch_size is None else batch[0]) for batch in loader] == lengths


def test_a_ring_grows_for_usual_batches_to_as_many_as_it_was_made_for(daemon):
    """Else a first batch of one row leaves room for two of the others."""
    daemon.start()
    with PrefetchLoader(Strings([1] + [300_000] * 60), batch_size=1) as loader:
        iterator = iter(loader)
        next(iterator)
        stream_when(
            daemon,
            loader.spec.name,
            lambda stream: stream["ring"] and stream["ring"]["ready"] > 30 * 5,
            "thirty batches ahead",
        )


def test_a_batch_that_is_more_than_there_is_is_told_with_what_there_is(bounded):
    lengths = [1, 1, 30 * MIB, 1]
    with PrefetchLoader(Strings(lengths), batch_size=1, socket=bounded) as loader:
        iterator = iter(loader)
        assert [len(text) for (text,) in (next(iterator), next(iterator))] == [1, 1]
        with pytest.raises(BatchTooLargeError, match=r"memory setting is 24\.0 MiB. Raise --memory") as caught:
            next(iterator)
        assert "buffer=" not in str(caught.value), "nobody gave one"
        assert [len(text) for (text,) in iterator] == [1]


def test_a_batch_of_which_there_is_room_for_one_comes_alone(bounded):
    """It is more than half of what there is; whoever takes it has a copy, and the next one has room."""
    lengths = [1, 1, 16 * MIB, 1, 16 * MIB, 16 * MIB, 1]
    with PrefetchLoader(Strings(lengths), batch_size=1, socket=bounded) as loader:
        for _ in range(2):
            assert [len(text) for (text,) in loader] == lengths


def test_a_batch_larger_than_the_buffer_is_told_with_the_sizes_and_the_next_ones_come():
    lengths = [1000] * 8 + [500_000] * 4 + [1000] * 8
    with PrefetchLoader(Strings(lengths), batch_size=4, buffer="1MiB") as loader:
        iterator = iter(loader)
        for _ in range(2):
            assert list(map(len, next(iterator))) == [1000] * 4
        with pytest.raises(BatchTooLargeError) as caught:
            next(iterator)
        assert "epoch 0, step 2" in str(caught.value)
        assert "takes 2000" in str(caught.value)
        assert "Raise buffer=" in str(caught.value)
        assert [list(map(len, batch)) for batch in iterator] == [[1000] * 4] * 2
