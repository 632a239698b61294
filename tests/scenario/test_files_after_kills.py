"""Batches as files, whoever is killed between whichever two lines: whole, in order, and nothing is left over."""

from __future__ import annotations

import pytest

from prefetchd.kill_points.kill_points import ORDERS_VARIABLE
from tests.contract.declared_daemons import Declared, ram_disk
from tests.scenario.datasets import equal
from tests.scenario.test_batches_as_files import LINES, STEPS, names, run
from tests.scenario.waiting import is_gone, until


@pytest.fixture
def declared(daemon, tmp_path):
    with ram_disk() as disk:
        yield Declared(daemon, tmp_path, disk, "files", "file", LINES)
        daemon.stop_and_check()


@pytest.fixture(scope="module")
def expected():
    from prefetchd_client import PrefetchLoader

    from tests.scenario.declared_datasets import labelled

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFETCHD_INLINE", "1")
        with PrefetchLoader(labelled(80), batch_size=4) as loader:
            return list(loader)


@pytest.mark.parametrize(
    "point", ["daemon.file.hidden:4", "daemon.file.shown:4", "daemon.files.undescribed", "daemon.file.gone:3"]
)
def test_a_killed_daemon(declared, expected, point):
    declared.daemon.environment[ORDERS_VARIABLE] = point
    declared.start()
    pid = declared.daemon.pid
    declared.daemon.processes()
    if "gone" in point:
        until(lambda: declared.files() == names(*run(0, 0, 10)), "filled")
        declared.at(0, 5)
    until(lambda: is_gone(pid), "it was killed")
    del declared.daemon.environment[ORDERS_VARIABLE]
    declared.start()
    batches = declared.directory()
    assert all(map(equal, batches, expected))
    counts = range(6, 11)
    until(
        lambda: declared.files() in [names(*run(1, 0, count)) for count in counts], "filled, and nothing else is there"
    )
    until(lambda: not list(declared.ram_disk.glob(".epoch*")), "nothing half written is left")


@pytest.mark.parametrize("point", ["worker.file.half:3", "worker.file.written:2"])
def test_killed_workers(declared, expected, point):
    declared.daemon.environment[ORDERS_VARIABLE] = point
    declared.start()
    batches = declared.directory()
    assert all(map(equal, batches, expected))
    assert len(expected) == STEPS
    # Twenty files are made faster than the status is published: what is there may be of before the first death.
    declared.when(lambda stream: stream["worker_deaths"] >= 1, "the death was counted")
