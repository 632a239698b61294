"""A stream's last minute."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.history import KEPT_SAMPLES, Counts, History


def observed(*counts, every_s=0.5):
    history = History()
    for number, each in enumerate(counts):
        history.observe(each, 100.0 + number * every_s)
    return history


def test_there_are_no_rates_before_a_second_has_passed():
    assert observed().recent() == {}
    assert observed(Counts(), Counts(batches=5)).recent() == {}
    assert observed(Counts(), Counts(), Counts(batches=5)).recent()["produced_batches_per_s"] == 5


def test_rates_are_counts_over_time():
    history = observed(*(Counts(batches=3 * n, samples=30 * n, consumed=2 * n, fill_s=n) for n in range(21)))
    recent = history.recent()
    assert recent["over_s"] == 10
    assert recent["produced_batches_per_s"] == 6
    assert recent["produced_samples_per_s"] == 60
    assert recent["consumed_batches_per_s"] == 4
    assert recent["fill_s"] == 20


def test_what_was_made_elsewhere_is_produced_and_no_pace_of_the_workers():
    history = observed(*(Counts(batches=6 * n, elsewhere=4 * n, workers=2, busy=2) for n in range(21)))
    recent = history.recent()
    assert (recent["produced_batches_per_s"], recent["elsewhere_batches_per_s"]) == (12, 8)
    (pace,) = history.paces()
    assert (pace["workers"], pace["batches_per_s"]) == (2, 4)


def test_only_the_last_minute_counts():
    history = observed(*(Counts(batches=1000 if n > 200 else 0) for n in range(400)))
    assert 60 <= history.recent()["over_s"] < 61.5
    assert history.recent()["produced_batches_per_s"] == 0
    assert len(history.ready_percents()) == KEPT_SAMPLES


def test_what_a_consumer_waited_for_its_first_batch_is_no_stall():
    history = observed(*(Counts(consumers=((7, waited_s),)) for waited_s in (20.0, 20.1, 20.1, 20.2)))
    assert history.recent()["stalled_s"] == pytest.approx(0.2)
    assert history.recent()["consumer_s"] == pytest.approx(1.5)


def test_rates_begin_with_the_first_consumer():
    idle, busy = Counts(batches=900), Counts(batches=900, consumers=((1, 0.0),))
    history = observed(idle, idle, idle, busy, busy, Counts(batches=910, consumers=((1, 0.0),)))
    assert history.recent()["over_s"] == 1
    assert history.recent()["produced_batches_per_s"] == 10
    assert history.ready_percents() == [0, 0, 0, 0]


def test_nobody_waits_for_longer_than_time_has_passed():
    waited = [((1, 0.0), (2, 0.0)), ((1, 0.5), (2, 90.0)), ((1, 1.0), (2, 90.0))]
    recent = observed(*(Counts(consumers=each) for each in waited)).recent()
    assert recent["stalled_s"] == pytest.approx(0.5 + 0.5 + 0.5)
    assert recent["consumer_s"] == pytest.approx(2)


def test_shares_of_time():
    full = Counts(is_full=True, ready_share=1.0)
    history = observed(Counts(ready_share=0.5), full, full, full, Counts())
    assert history.recent()["full_share"] == 0.75
    assert history.recent()["empty_share"] == 0.25
    assert history.ready_percents() == [50, 100, 0]


def test_workers_that_end_take_no_cpu_time_back():
    recent = observed(*(Counts(cpu_s=cpu_s, cpu_wait_s=cpu_s / 2) for cpu_s in (0, 5, 1, 3))).recent()
    assert recent["cpu_s"] == 7
    assert recent["cpu_wait_s"] == 3.5


def test_the_longest_task_is_that_of_the_last_minute():
    def one(longest_s):
        return Counts(longest_task_s=longest_s)

    history = observed(one(9.0), one(0.1), one(0.2), one(3.0), one(0.0))
    assert history.recent()["longest_task_s"] == 3.0
    for number in range(200):
        history.observe(one(0.5), 200.0 + number)
    assert history.recent()["longest_task_s"] == 0.5


def test_what_each_number_of_workers_has_made_while_all_of_them_were_busy():
    def made(batches, workers, busy):
        return Counts(batches=batches, workers=workers, busy=busy)

    history = observed(
        *(made(5 * n, 2, 2) for n in range(9)),
        *(made(40, 2, 1) for _ in range(4)),
        *(made(40 + 6 * n, 4, 4) for n in range(5)),
        every_s=0.5,
    )
    assert history.paces() == [
        {"workers": 2, "batches_per_s": 10.0, "over_s": 4.0},
        {"workers": 4, "batches_per_s": 12.0, "over_s": 2.0},
    ]


def test_the_pace_of_a_number_that_comes_back_is_measured_anew():
    history = observed(
        *(Counts(batches=n, workers=2, busy=2) for n in range(5)),
        *(Counts(batches=4, workers=1, busy=1) for _ in range(3)),
        *(Counts(batches=4 + 3 * n, workers=2, busy=2) for n in range(3)),
    )
    assert history.paces()[-1] == {"workers": 2, "batches_per_s": 6.0, "over_s": 1.0}


def test_busy_workers_are_those_of_the_last_seconds():
    busy = [Counts(fill_s=2.0 * n) for n in range(30)]
    idle = [Counts(fill_s=58.0)] * 8
    history = observed(*busy, *idle, every_s=1.0)
    assert history.recent()["fill_s"] == 58.0
    assert history.recent()["busy_workers"] == 0.0


def test_times_of_a_kind_are_those_of_the_last_minute():
    history = observed(
        *(Counts(collating_s=n, disk_s=2 * n, process_cpu_s=3 * n, is_starting=n < 2) for n in range(5)), every_s=1.0
    )
    recent = history.recent()
    assert (recent["collating_s"], recent["disk_s"], recent["process_cpu_s"]) == (4, 8, 12)
    assert recent["starting_s"] == 1.0


def test_a_burst_is_a_full_ring_that_becomes_empty():
    full, some, empty = Counts(is_full=True, ready_share=1.0), Counts(ready_share=0.5), Counts()
    history = observed(empty, full, some, empty, empty, some, empty, full, empty, some, full, some)
    assert history.recent()["bursts"] == 2
