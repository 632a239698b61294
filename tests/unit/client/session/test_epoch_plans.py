"""What a trainer says of the epoch that it begins."""

from __future__ import annotations

import torch
from prefetchd_client.session.cursors import ClientCursor, Cursors
from prefetchd_client.session.epoch_plans import EpochPlans
from prefetchd_client.session.sampler_state import SamplerState

from prefetchd.wire.messages import AFTER_FIRST, BEFORE, EpochStates, Message


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
