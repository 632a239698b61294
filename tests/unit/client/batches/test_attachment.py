"""A process's attachment to a ring: its record in the segment."""

from __future__ import annotations

import os

import pytest
from prefetchd_client.batches.attachment import Attachment, NotOurs

from prefetchd.ring.segment import RingSegment, new_header
from prefetchd.wire.framing import close_all
from prefetchd.wire.segment_layout import DEPARTED
from prefetchd.wire.stream_spec import encode_spec
from tests.scenario.waiting import open_rings
from tests.unit.wire.golden.examples import BARE_SPEC


@pytest.fixture
def ring():
    spec = encode_spec(BARE_SPEC)
    header = new_header(4, 4096, "0" * 32, 1, spec, b"", "")
    found = RingSegment.create(f"/prefetchd-test-ring-{os.getpid():x}", header, spec, b"", 4)
    yield found
    found.close()


def test_a_new_consumer_is_not_taken_for_the_one_whose_record_it_takes_over(ring):
    first = Attachment(os.dup(ring.shared_fd), 3, 1)
    first.note_yield(1, 5, 7, 100)
    assert (ring.consumer_record(3).epoch, ring.consumer_record(3).step) == (5, 7)
    first.note_departure()
    first.close()
    assert ring.consumer_record(3).cursor == DEPARTED
    second = Attachment(os.dup(ring.shared_fd), 3, 1)
    found = ring.consumer_record(3)
    assert (found.pid, found.cursor, found.epoch, found.step, found.yielded) == (os.getpid(), -1, 0, 0, 0)
    second.close()


def test_one_that_attaches_to_its_next_ring_goes_on_with_its_counts(ring):
    first = Attachment(os.dup(ring.shared_fd), 0, 1)
    first.note_yield(1, 0, 1, 100)
    second = Attachment(os.dup(ring.shared_fd), 1, 1, first)
    second.note_yield(1, 0, 2, 50)
    found = ring.consumer_record(1)
    assert (found.yielded, found.waited_us) == (2, 150)
    first.close()
    second.close()


def test_a_ring_that_another_daemon_goes_on_with_is_left_as_it_is(ring):
    """Its record may be another consumer's by now."""
    first = Attachment(os.dup(ring.shared_fd), 0, 1)
    first.note_yield(1, 4, 2, 100)
    first.close()
    with pytest.raises(NotOurs):
        Attachment(os.dup(ring.shared_fd), 0, 2)
    assert (ring.consumer_record(0).epoch, ring.consumer_record(0).step) == (4, 2)
    assert not ring.has_living_consumer(0), "nor is it locked any more"


def test_a_record_whose_lock_another_has_is_left_as_it_is(ring):
    """A fork that has yet to close what it inherited: at its end the record would have no lock at all."""
    first = Attachment(os.dup(ring.shared_fd), 0, 1)
    first.note_yield(1, 4, 2, 100)
    inherited = [os.dup(fd) for fd in open_rings()]
    first.close()
    with pytest.raises(NotOurs):
        Attachment(os.dup(ring.shared_fd), 0, 1)
    assert (ring.consumer_record(0).epoch, ring.consumer_record(0).step) == (4, 2)
    close_all(inherited)
    Attachment(os.dup(ring.shared_fd), 0, 1).close()
