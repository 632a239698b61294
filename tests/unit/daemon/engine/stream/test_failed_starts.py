"""The rules of failed starts, one by one."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.failed_starts import FIRST_PAUSE_S, LONGEST_PAUSE_S, FailedStarts


def pause_s(starts: FailedStarts, now_s: float) -> float:
    """How long a pause lasts that begins now, to a hundredth of a second."""
    starts.add(now_s, "limit")
    waited = 0
    while not starts.end_pause(now_s + waited / 100):
        waited += 1
    return waited / 100


def test_rule_1_each_pause_is_twice_as_long_as_the_one_before_up_to_a_limit():
    starts = FailedStarts()
    pauses = [pause_s(starts, 10.0) for _ in range(7)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == LONGEST_PAUSE_S


def test_rule_1_the_first_failure_in_a_row_is_news():
    starts = FailedStarts()
    assert starts.add(0.0, "limit")
    assert starts.end_pause(LONGEST_PAUSE_S)
    assert not starts.add(9.0, "memory")
    assert starts.why == "memory"


def test_rule_1_without_a_failure_there_is_no_pause_to_end():
    starts = FailedStarts()
    assert (starts.count, starts.why, starts.is_pausing) == (0, "", False)
    assert not starts.end_pause(100.0)


def test_rule_2_failures_during_a_pause_count_as_one():
    starts = FailedStarts()
    starts.add(0.0, "limit")
    assert not starts.add(FIRST_PAUSE_S / 2, "memory")
    assert (starts.count, starts.why) == (1, "memory")
    assert starts.end_pause(FIRST_PAUSE_S), "the pause is not longer for them"


def test_rule_3_a_process_that_could_be_had_ends_it_all():
    starts = FailedStarts()
    for now_s in (0.0, 9.0):
        starts.add(now_s, "limit")
        starts.end_pause(now_s + LONGEST_PAUSE_S)
    starts.add(20.0, "limit")
    starts.clear()
    assert (starts.count, starts.why, starts.is_pausing) == (0, "", False)
    assert starts.add(21.0, "limit"), "the first time in a row"
