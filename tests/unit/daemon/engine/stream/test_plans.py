"""What the daemon keeps of a planner's answers: asked ahead, bounded, and void once a trainer begins otherwise."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.stream.plans import (
    AHEAD,
    BEGINNING_EPOCHS,
    BEGINNING_STEPS,
    KEPT_ASSUMPTIONS,
    KEPT_BEYOND_NEED,
    KEPT_STATES,
    MOST_STATES,
    STEPS_AN_ASK,
    Plans,
)
from prefetchd.plan.keys import digest
from prefetchd.ring.cursors import EpochLengths, new_cursor
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import STAGES, AskPlan, Assume, Begun, PlanFailed, Planned, Rebase
from prefetchd.wire.stream_spec import POSITION_LIMIT


def answer(plans: Plans, steps: int = -1, count: int | None = None) -> None:
    """The planner does what it was asked."""
    asked = plans.asked
    assert asked is not None
    last = asked.first_step + asked.steps if steps < 0 else min(steps, asked.first_step + asked.steps)
    chosen = range(asked.first_step, last if count is None else asked.first_step + count)
    keys = tuple(f"{asked.epoch} {step}".encode() for step in chosen)
    ends = steps if steps >= 0 and (not chosen or chosen[-1] == steps - 1) else -1
    plans.planner_says(Planned(asked.epoch, asked.first_step, (4,) * len(chosen), keys, ends))


def ask(plans: Plans, epoch: int = 0, step: int = 0) -> None:
    assert plans.at((epoch, step)) is None
    assert plans.has_question
    plans.questions()


def test_what_is_not_known_is_asked_for_once():
    plans = Plans(EpochLengths(None))
    assert not plans.has_question
    assert plans.at((0, 3)) is None
    assert plans.at((0, 5)) is None
    assert plans.questions() == [AskPlan(0, 3, STEPS_AN_ASK, 0)]
    assert not plans.has_question
    answer(plans)
    found = plans.at((0, 3))
    assert (found.rows, found.keys, found.plan) == (4, b"0 3", digest(b"0 3"))


def test_the_next_steps_are_asked_for_before_they_are_needed():
    plans = Plans(EpochLengths(None))
    ask(plans)
    answer(plans)
    assert plans.at((0, STEPS_AN_ASK - AHEAD - 1)) is not None
    assert not plans.has_question
    assert plans.at((0, STEPS_AN_ASK - AHEAD)) is not None
    assert plans.questions() == [AskPlan(0, STEPS_AN_ASK, STEPS_AN_ASK, 0)]


def test_an_epoch_s_end_is_learnt_and_nothing_is_asked_beyond_it():
    lengths = EpochLengths(None)
    plans = Plans(lengths)
    ask(plans)
    answer(plans, steps=3)
    assert lengths.steps(0) == 3
    assert plans.at((0, 2)) is not None
    assert plans.at((0, 3)) is None
    assert not plans.has_question


def test_an_error_of_the_sampler_is_one_more_step():
    lengths = EpochLengths(None)
    plans = Plans(lengths)
    ask(plans)
    plans.planner_says(PlanFailed(0, 2, b"broken"))
    answer(plans, steps=2)
    assert lengths.steps(0) == 3
    assert plans.at((0, 2)).error == b"broken"


def test_the_earliest_epoch_is_asked_first():
    plans = Plans(EpochLengths(None))
    plans.at((4, 0))
    plans.at((2, 7))
    assert plans.questions() == [AskPlan(2, 7, STEPS_AN_ASK, 0)]


def test_an_assumption_voids_what_comes_after_and_reaches_the_planner_with_the_next_question():
    lengths = EpochLengths(None)
    plans = Plans(lengths)
    for epoch in (0, 1, 2):
        ask(plans, epoch)
        answer(plans, steps=5)
    plans.assume(Assume(1, 7, (b"state",)))
    assert plans.at((0, 0)) is not None
    assert lengths.steps(1) is None
    assert plans.at((1, 0)) is None
    assert plans.questions() == [Rebase(1, 7, (b"state",)), AskPlan(1, 0, STEPS_AN_ASK, 0)]
    answer(plans, steps=5)
    ask(plans, 2)
    assert plans.asked == AskPlan(2, 0, STEPS_AN_ASK, 0)


def test_an_epoch_that_another_means_stays_planned_as_it_is_and_so_do_those_after_it():
    lengths = EpochLengths(None)
    plans = Plans(lengths)
    for epoch in range(5):
        ask(plans, epoch)
        plans.planner_says(Begun(epoch, 0, epoch, (b"was",)))
        answer(plans, steps=5)
    assert plans.assume(Assume(1, 7, (b"is",)), {0, 3, 4}) == range(1, 3)
    assert [lengths.steps(epoch) for epoch in range(5)] == [5, None, None, 5, 5]
    assert [plans.knows((epoch, 0)) for epoch in range(5)] == [True, False, False, True, True]
    # A planner that comes there from before it is told how it begins, for it would think otherwise.
    assert plans.at((2, 0)) is None
    assert plans.questions() == [Rebase(1, 7, (b"is",)), AskPlan(2, 0, STEPS_AN_ASK, 0)]
    answer(plans, steps=5)
    ask(plans, 5)
    assert plans.asked is not None
    plans.planner_is_new()
    assert plans.questions() == [Rebase(3, 3, (b"was",)), AskPlan(5, 0, STEPS_AN_ASK, 0)]


def test_what_is_asked_of_an_epoch_that_stays_is_not_asked_in_vain():
    plans = Plans(EpochLengths(None))
    plans.assume(Assume(3, 5))
    ask(plans, 4)
    assert plans.assume(Assume(1, 7), {3}) == range(1, 3)
    answer(plans)
    assert plans.at((4, 0)) is not None
    assert plans.assume(Assume(0, 9), {4}) == range(POSITION_LIMIT), "of epoch 4 it is not known how it begins"


def test_of_many_assumptions_the_latest_is_kept_with_those_that_lie_nearest():
    plans = Plans(EpochLengths(None))
    for epoch in reversed(range(2 * KEPT_ASSUMPTIONS)):
        plans.assume(Assume(epoch, epoch), range(2 * KEPT_ASSUMPTIONS))
        assert plans.agrees(Assume(epoch, epoch))
    told = []
    for epoch in range(2 * KEPT_ASSUMPTIONS):
        plans.at((epoch, 0))
        told += [each.epoch for each in plans.questions() if isinstance(each, Rebase)]
        answer(plans, steps=1)
    assert told == list(range(KEPT_ASSUMPTIONS))


def test_an_answer_that_was_on_its_way_is_void_too():
    plans = Plans(EpochLengths(None))
    ask(plans, 1)
    plans.assume(Assume(1, 7))
    plans.planner_says(Begun(1, 0, 3))
    answer(plans, steps=5)
    assert plans.at((1, 0)) is None
    assert plans.questions()[0] == Rebase(1, 7)


def test_another_planner_is_told_all_that_holds_for_what_it_is_asked():
    plans = Plans(EpochLengths(None))
    for epoch in (1, 3):
        plans.assume(Assume(epoch, epoch))
    ask(plans, 3)
    plans.planner_is_new()
    assert plans.questions() == [Rebase(3, 3), AskPlan(3, 0, STEPS_AN_ASK, 0)]
    plans.planner_is_new()
    plans.planner_is_new()
    assert plans.at((2, 0)) is None
    assert plans.questions() == [Rebase(1, 1), AskPlan(2, 0, STEPS_AN_ASK, 0)]


def test_states_are_told_to_each_cursor_once_and_before_its_batches():
    plans = Plans(EpochLengths(None))
    cursor = new_cursor(("trainer", 1), "trainer", (2, 0), True, EpochLengths(None))
    ask(plans, 2)
    assert not plans.has_untold_states(cursor)
    plans.planner_says(Begun(2, 0, 5, (b"a",)))
    plans.planner_says(Begun(2, 1, 5, (b"b",)))
    assert plans.has_untold_states(cursor)
    assert [(each.stage, each.states) for each in plans.news(cursor, 1)] == [(0, (b"a",)), (1, (b"b",))]
    assert not plans.has_untold_states(cursor)
    plans.assume(Assume(2, 6, (b"c",)))
    answer(plans)
    ask(plans, 2)
    plans.planner_says(Begun(2, 0, 6, (b"c",)))
    assert [each.states for each in plans.news(cursor, 1)] == [(b"c",)]


def begun_up_to(epochs: int, lengths: EpochLengths) -> Plans:
    plans = Plans(lengths)
    for epoch in range(epochs):
        ask(plans, epoch)
        for stage in STAGES:
            plans.planner_says(Begun(epoch, stage, epoch))
        answer(plans, steps=1)
    return plans


def test_states_are_kept_for_cursors_and_for_the_latest_epochs_and_are_asked_for_again():
    epoch = BEGINNING_EPOCHS
    plans = begun_up_to(epoch + KEPT_STATES + 3, EpochLengths(None))
    cursor = new_cursor(("trainer", 1), "trainer", (epoch, 0), False, EpochLengths(None))
    plans.trim([cursor], lambda _: False)
    assert plans.has_begun(epoch)
    assert [each.epoch for each in plans.news(cursor, 1)] == [epoch, epoch, epoch]
    assert not plans.has_begun(epoch + 1)
    assert not plans.has_question
    plans.want_beginning(epoch + 1)
    assert plans.questions() == [AskPlan(epoch + 1, 0, STEPS_AN_ASK, 0)]


def test_states_are_kept_for_the_epochs_that_are_ready_ahead():
    """A planner has gone on to the last of them: asked for an earlier one, it would have to begin again."""
    lengths = EpochLengths(None)
    first = BEGINNING_EPOCHS + 2
    plans = begun_up_to(4 * KEPT_STATES, lengths)
    cursor = new_cursor(("trainer", 1), "trainer", (first, 0), True, lengths)
    plans.trim([cursor], lambda position: position >= (first, 0))
    assert all(plans.has_begun(epoch) and plans.has_ended(epoch) for epoch in range(first, 4 * KEPT_STATES))
    assert not plans.has_question
    assert not plans.has_begun(first - 1)


def test_states_of_more_epochs_than_are_kept_are_those_that_come_first():
    plans = begun_up_to(MOST_STATES + 3 * KEPT_STATES, EpochLengths(None))
    plans.trim([], lambda _: True)
    assert plans.has_begun(MOST_STATES - 1)
    assert not plans.has_begun(MOST_STATES)
    assert plans.has_begun(MOST_STATES + 3 * KEPT_STATES - 1)


def test_an_end_is_known_once_its_states_are():
    """Found as a generator that was left where its epoch began: the end was known, and its states were forgotten."""
    lengths = EpochLengths(None)
    plans = begun_up_to(1, lengths)
    assert plans.has_ended(0)
    plans = Plans(lengths)
    assert not plans.has_ended(0)
    plans.want_end(0)
    assert plans.questions() == [AskPlan(0, 1, STEPS_AN_ASK, 0)]


def test_a_planner_is_asked_for_the_stages_that_are_not_known():
    plans = Plans(EpochLengths(None))
    ask(plans)
    for stage in (0, 1):
        plans.planner_says(Begun(0, stage, -1))
    answer(plans)
    assert plans.at((0, STEPS_AN_ASK)) is None
    assert plans.questions() == [AskPlan(0, STEPS_AN_ASK, STEPS_AN_ASK, 2)]


def test_where_there_is_nothing_to_compare_nothing_is_told():
    plans = Plans(EpochLengths(None))
    cursor = new_cursor(("trainer", 1), "trainer", (2, 0), True, EpochLengths(None))
    ask(plans, 2)
    plans.planner_says(Begun(2, 0, -1))
    assert not plans.has_untold_states(cursor)


def test_plans_are_forgotten_when_nobody_can_want_them():
    plans = Plans(EpochLengths(None))
    for step in range(0, 2 * KEPT_BEYOND_NEED, STEPS_AN_ASK):
        ask(plans, 0, step)
        answer(plans)
        plans.trim([], lambda position, step=step: position[1] >= step)
    assert len(plans._known) <= KEPT_BEYOND_NEED + STEPS_AN_ASK + BEGINNING_STEPS
    assert plans.knows((0, 2 * KEPT_BEYOND_NEED - 1))


def test_the_beginning_is_kept_for_a_script_that_is_run_again():
    lengths = EpochLengths(None)
    plans = Plans(lengths)
    steps = KEPT_BEYOND_NEED // 2
    for epoch in range(9):
        for step in range(0, steps, STEPS_AN_ASK):
            ask(plans, epoch, step)
            for stage in STAGES[:2] if not step else ():
                plans.planner_says(Begun(epoch, stage, epoch))
            answer(plans, steps=steps if step + STEPS_AN_ASK >= steps else -1)
            plans.trim([], lambda position, now=(epoch, step): position >= now)
    assert plans.beginning() == [(0, step) for step in range(BEGINNING_STEPS)]
    assert not plans.knows((0, BEGINNING_STEPS))
    assert not plans.knows((1, 0))
    assert plans.has_begun(0)
    assert not plans.has_question


def test_the_beginning_goes_on_over_the_ends_of_short_epochs_as_long_as_all_is_known():
    lengths = EpochLengths(None)
    plans = begun_up_to(2 * BEGINNING_EPOCHS, lengths)
    assert plans.beginning() == [(epoch, 0) for epoch in range(BEGINNING_EPOCHS)]
    plans.assume(Assume(3, 7))
    assert plans.beginning() == [(0, 0), (1, 0), (2, 0)]
    assert Plans(EpochLengths(None)).beginning() == []


@pytest.mark.parametrize(
    "message",
    [
        Begun(1, 0, -1),
        Planned(0, 1, (4,), (b"x",)),
        Planned(0, 0, (4, 4), (b"x",)),
        Planned(0, 0, (), ()),
        AskPlan(0, 0, 1, 0),
    ],
    ids=str,
)
def test_what_a_planner_must_not_say(message):
    plans = Plans(EpochLengths(None))
    with pytest.raises(ProtocolError):
        plans.planner_says(message)
    ask(plans)
    with pytest.raises(ProtocolError):
        plans.planner_says(message)
