"""How far the daemon goes with workers that wait, where nothing else runs."""

from __future__ import annotations

from prefetchd_client import PrefetchLoader

from tests.scenario.test_autotune import Waiting, taken_until


def test_workers_that_wait_become_many_times_the_cpus(daemon):
    daemon.start("--autotune")
    with PrefetchLoader(Waiting(), batch_size=8, stream="waits") as loader:
        found, _ = taken_until(daemon, "waits", iter(loader), lambda it: len(it["workers"]) >= 16, "16 workers")
        assert found["workers_limit"] >= 16
