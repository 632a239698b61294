"""Samples that were left out or replaced: what is counted, what is named, and who is told."""

from __future__ import annotations

import pytest

from prefetchd.daemon.engine.commands import Log, Send
from prefetchd.daemon.engine.stream.bad_samples import (
    MOST_NAMED,
    MOST_REMEMBERED,
    TOLD_LATER,
    BadSampleNews,
    named_before,
)
from prefetchd.daemon.engine.stream.batches import Batch, Piece
from prefetchd.daemon.engine.stream.consumers import Consumer
from prefetchd.wire.messages import BadSamples, BadSamplesNamed
from tests.unit.daemon.engine.stream.rooms import stream_of, works

TRAINERS = (5, 6)


class Bed:
    """A stream with two trainers and a worker."""

    def __init__(self) -> None:
        self.commands: list = []
        self.stream = stream_of(4, self.commands)
        self.stream.consumers = {each: Consumer(each, 100, each, 1, True) for each in TRAINERS}
        self.worker = works(self.stream)
        self.news = BadSampleNews(self.commands)

    def bad(self, step: int, *samples: tuple[int, int, int], texts: tuple[bytes, ...] = ()) -> None:
        """The worker tells of (row, attempt, index) of the batch at that step."""
        self.news.take(self.worker, Piece(Batch((0, step), 4), 0, 4), BadSamples(0, samples, texts))

    @property
    def count(self) -> int:
        return self.stream.counters.bad_samples

    @property
    def indices(self) -> list[int]:
        """Those that the log names."""
        return [dict(each.fields)["index"] for each in self.commands if isinstance(each, Log)]


@pytest.fixture
def bed():
    return Bed()


def test_each_is_counted_once_though_its_batch_is_made_again(bed):
    bed.bad(3, (0, 0, 17), (1, 0, 18))
    bed.bad(3, (0, 0, 17))
    bed.bad(3, (0, 1, 19))
    assert bed.count == 3, "the last one was tried in the place of the first"


def test_each_index_is_named_once(bed):
    bed.bad(3, (0, 0, 17))
    bed.bad(8, (0, 0, 17))
    assert bed.count == 2
    assert bed.indices == [17]


def test_every_trainer_is_told_where_it_was(bed):
    bed.bad(3, (2, 0, 17), texts=("zerbrochen: ä".encode(),))
    named = BadSamplesNamed(((0, 3, 2, bed.worker.number),), ("zerbrochen: ä".encode(),))
    assert [each for each in bed.commands if isinstance(each, Send)] == [Send(each, named) for each in TRAINERS]


def test_a_text_that_is_none_or_is_missing_is_no_fault(bed):
    bed.bad(3, (0, 0, 17), (1, 0, 18), texts=(b"\xff",))
    texts = [dict(each.fields)["text"] for each in bed.commands if isinstance(each, Log)]
    assert texts == ["\N{REPLACEMENT CHARACTER}", ""]


def test_who_comes_later_is_told_of_the_latest(bed):
    assert named_before(bed.stream) is None
    for index in range(TOLD_LATER + 2):
        bed.bad(index, (0, 0, index), texts=(b"%d" % index,))
    told = named_before(bed.stream)
    assert told.before
    assert len(told.samples) == len(told.texts) == TOLD_LATER
    assert told.texts[-1] == b"%d" % (TOLD_LATER + 1)


def test_of_very_many_the_rest_is_only_counted(bed):
    for index in range(MOST_NAMED + 5):
        bed.bad(index, (0, 0, index))
    assert bed.count == MOST_NAMED + 5
    assert bed.indices == list(range(MOST_NAMED + 1))
    last = [each for each in bed.commands if isinstance(each, Log)][-1]
    assert "further ones are counted only" in dict(last.fields)["text"]


def test_memory_is_bounded(bed):
    for step in range(MOST_REMEMBERED + 1):
        bed.bad(step, (0, 0, 17))
    assert len(bed.stream.bad_samples) == MOST_REMEMBERED
    bed.bad(MOST_REMEMBERED, (0, 0, 17))
    assert bed.count == MOST_REMEMBERED + 1, "the latest are remembered"
    bed.bad(0, (0, 0, 17))
    assert bed.count == MOST_REMEMBERED + 2
