"""What a stream's counters count."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.stream.counters import Counters
from prefetchd.wire.durations import Durations
from prefetchd.wire.errors import ProtocolError


def test_a_batch_counts_when_it_is_ready():
    counters = Counters()
    counters.batch_is_ready(300)
    counters.batch_is_ready(200)
    assert (counters.batches, counters.payload_bytes) == (2, 500)


def test_a_task_counts_with_its_samples_and_its_time():
    counters = Counters()
    counters.task_took(4000, 3)
    counters.task_took(1000, 2)
    assert (counters.tasks, counters.samples, counters.fill_us) == (2, 5, 5000)
    assert counters.task_durations.total_us == 5000
    assert sum(counters.task_durations.counts) == 2


def test_the_longest_task_is_told_once():
    counters = Counters()
    counters.task_took(4000, 3)
    counters.task_took(1000, 2)
    assert counters.take_longest_task_us() == 4000
    counters.task_took(2000, 1)
    assert counters.take_longest_task_us() == 2000, "the longest since then"
    assert counters.take_longest_task_us() == 0


def test_samples_count_as_their_worker_tells():
    counters, worker = Counters(), Durations()
    worker.add(700, times=2)
    counters.samples_took(worker.take())
    counters.samples_took(())
    assert counters.sample_durations.total_us == 1400
    assert sum(counters.sample_durations.counts) == 2


@pytest.mark.parametrize("times", [(5, 10_000, 1), (5, 0), (5, -1, 1)], ids=repr)
def test_what_no_worker_counts_changes_nothing(times):
    counters = Counters()
    with pytest.raises(ProtocolError, match=r"Filled\.sample_times"):
        counters.samples_took(times)
    assert (counters.sample_durations.total_us, sum(counters.sample_durations.counts)) == (0, 0)
