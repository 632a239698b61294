"""What the demo says of a trainer while it runs."""

from __future__ import annotations

import pytest
from prefetchd_demo.own_daemon import RingFill
from prefetchd_demo.progress_line import progress_line, validated_line
from prefetchd_demo.trainer_messages import Progress, Validated


@pytest.mark.parametrize(
    ("ring", "expected"),
    [
        (RingFill(20, 27), "loss 0.31  accuracy  97 %  1,242 img/s  ring 20/27  stalled 0.7 s"),
        (None, "loss 0.31  accuracy  97 %  1,242 img/s  stalled 0.7 s"),
    ],
)
def test_while_an_epoch_trains(ring, expected):
    assert progress_line(Progress(2, 30, 32, 0.309, 0.971, 1241.6, 0.7306, 3.2, 100.0), ring) == expected


def test_after_validation():
    expected = "loss 0.31  validation loss 0.42  accuracy 93 %  stalled 1.5 s so far"
    assert validated_line(Validated(0, 0.309, 0.421, 0.931, 1.52)) == expected
