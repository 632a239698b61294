"""Whether epochs are made ahead of time: by the argument, by live state, by what DataLoader's workers would do."""

from __future__ import annotations

import pytest
from prefetchd_client.session.run_ahead import RunAhead, decide

from prefetchd.wire.messages import AHEAD, HELD, LIVE

SHARED = "dataset.epoch is a shared value"


@pytest.mark.parametrize(
    ("argument", "live", "reiterates", "ahead", "why"),
    [
        (None, (), False, AHEAD, ""),
        (None, None, False, AHEAD, ""),
        (None, (SHARED,), False, LIVE, SHARED),
        (None, (SHARED, "b", "c"), False, LIVE, f"{SHARED} (and 2 more)"),
        (None, (SHARED,), True, LIVE, SHARED),
        (None, (), True, HELD, "an iterable dataset with persistent_workers=True begins its epochs at iter()"),
        (True, (SHARED,), True, AHEAD, ""),
        (False, (), False, HELD, "run_ahead=False"),
    ],
)
def test_rules_decide(argument, live, reiterates, ahead, why):
    assert decide(argument, live, reiterates=reiterates) == RunAhead(ahead, why)
