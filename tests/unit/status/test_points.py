"""Points of a stream, from examples of its status."""

from __future__ import annotations

from prefetchd.status.points import COLUMNS, StreamPoints
from prefetchd.status.status_object import status_object
from tests.unit.cli.examples import consumer, report, stream


def judged(**changes):
    return status_object(report(stream(**changes)))["streams"][0]


def test_rates_are_between_two_looks():
    points = StreamPoints()
    first = points.point(judged(produced_batches=10, consumed_batches=5), 100.0, 7.0)
    assert dict(zip(COLUMNS, first))["made"] is None
    second = points.point(judged(produced_batches=14, consumed_batches=8), 102.0, 9.0)
    found = dict(zip(COLUMNS, second))
    assert (found["at_unix_s"], found["made"], found["used"]) == (102.0, 2.0, 1.5)


def test_wait_under_way_counts_while_it_lasts():
    points = StreamPoints()
    points.point(judged(consumers=[consumer(waited_s=1.0, waiting_s=0.0)]), 0.0, 0.0)
    found = points.point(judged(consumers=[consumer(waited_s=1.0, waiting_s=0.5)]), 1.0, 1.0)
    assert dict(zip(COLUMNS, found))["stalled"] == 0.5
    # It has ended, and became a part of what was waited.
    found = points.point(judged(consumers=[consumer(waited_s=1.7, waiting_s=0.0)]), 2.0, 2.0)
    assert dict(zip(COLUMNS, found))["stalled"] == 0.2


def test_stream_that_begins_again_has_no_rates_at_first():
    points = StreamPoints()
    points.point(judged(produced_batches=100, consumed_batches=90), 0.0, 0.0)
    found = points.point(judged(produced_batches=3, consumed_batches=1), 1.0, 1.0)
    assert found[2:5] == (None, None, None)
