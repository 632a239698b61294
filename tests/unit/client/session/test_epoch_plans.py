"""What a trainer says of the epoch that it begins."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client.session.cursors import ClientCursor, Cursors
from prefetchd_client.session.epoch_plans import EpochPlans
from prefetchd_client.session.sampler_state import SamplerState

from prefetchd.wire.messages import AFTER_FIRST, BEFORE, Assume, EpochStates, Message
from prefetchd.wire.sampler_epochs import NO_EPOCH, pack_attributes, set_attributes


def test_a_daemon_that_takes_over_while_an_epoch_begins_is_told_how_it_begins():
    """Found by chaos: it ran the sampler from what the program says, and dropped what was ready."""
    generator = torch.Generator().manual_seed(11)
    sampler_state, cursors, sent = SamplerState(None, [generator]), Cursors(), list[Message]()
    cursor = cursors.new(3, 0, 3)
    before = sampler_state.about(3)

    def another_daemon(_: ClientCursor, __: float) -> None:
        cursors.forget_offers()
        plans.say_again()
        for stage in (BEFORE, AFTER_FIRST):
            cursors.planned(EpochStates(cursor.number, 3, stage, before.sampler_epoch, before.states))

    plans = EpochPlans(sampler_state, cursors, sent.append, another_daemon)
    plans.compare(cursor, 0)
    assert sent == [before]
    sent.clear()
    plans.say_again()
    assert sent == [before], "it is what the iterator began with, from now on"


class MakesItsGenerator:
    """A sampler as accelerate's SeedableRandomSampler: its first pass puts a generator in the place of None."""

    def __init__(self) -> None:
        self.generator = None
        self.seed = 7


@pytest.mark.parametrize(("seed", "plans_anew"), [(7, 0), (8, 1)])
def test_attribute_that_a_pass_makes_an_object_is_not_compared(seed, plans_anew):
    sampler, planners = MakesItsGenerator(), MakesItsGenerator()
    planners.generator, planners.seed = torch.Generator(), seed
    sampler_state, cursors, sent = SamplerState(sampler, []), Cursors(), list[Message]()
    cursor = cursors.new(1, 0, 1)

    def planner(_: ClientCursor, __: float) -> int:
        anew = [each for each in sent if isinstance(each, Assume)]
        assert len(anew) <= 1, "planned anew for what no planner can tell"
        if anew:
            set_attributes(planners, anew[-1].attributes)
        for stage in (BEFORE, AFTER_FIRST):
            cursors.planned(EpochStates(cursor.number, 1, stage, NO_EPOCH, (), pack_attributes(planners)))
        return 0

    plans = EpochPlans(sampler_state, cursors, sent.append, planner)
    plans.compare(cursor, 0)
    assert len([each for each in sent if isinstance(each, Assume)]) == plans_anew
