"""Slots that stand for files: whose file is removed, and what becomes of a batch whose file has gone."""

from __future__ import annotations

import dataclasses

from prefetchd.daemon.engine.commands import FreeSlot
from prefetchd.daemon.engine.stream.file_backed_ring import FILES, lose, ring_of
from prefetchd.ring.policy import Ring, SlotState
from tests.unit.daemon.engine.stream.rooms import SPEC, into, ready, stream_of, walks

OF_FILES = dataclasses.replace(SPEC, store=FILES, directory="/batches")


def ring_for(spec) -> tuple[Ring, list]:
    """A ring of two slots, and what is commanded about it."""
    commands: list = []
    ring = ring_of(stream_of(0, spec=spec), 2, commands, first_generation=30)
    ring.reserve(2)
    return ring, commands


def test_a_slot_that_is_freed_has_its_file_removed():
    ring, commands = ring_for(OF_FILES)
    grant = ring.claim()
    ring.fill(grant)
    assert commands == []
    ring.evict(grant)
    assert commands == [FreeSlot(1, grant.slot, 30)]


def test_there_is_no_file_behind_shared_memory():
    ring, commands = ring_for(SPEC)
    ring.abandon(ring.claim())
    assert commands == []


def test_generations_begin_where_the_caller_says():
    ring, _ = ring_for(SPEC)
    assert ring.claim().generation == 30


def test_a_batch_whose_file_has_gone_is_dropped_and_made_again():
    stream = stream_of(4, spec=OF_FILES)
    walks(stream.window)
    batch = ready(stream.window, 0)
    stream.window._filling = False
    assert lose(stream, batch.grant.slot, batch.grant.generation)
    assert stream.window.batches == {}
    assert stream.window.may_fill()
    assert stream.claims.next_piece(7, into(1)).batch.position == (0, 0)


def test_not_if_the_slot_is_another_s_by_now():
    stream = stream_of(4, spec=OF_FILES)
    batch = ready(stream.window, 0)
    assert lose(stream, batch.grant.slot, batch.grant.generation - 1) is False
    assert stream.window.batches == {(0, 0): batch}


def test_not_if_somebody_has_been_offered_it():
    stream = stream_of(4, spec=OF_FILES)
    batch = ready(stream.window, 0)
    stream.window.ring.lease(batch.grant, "trainer")
    assert not lose(stream, batch.grant.slot, batch.grant.generation)
    assert stream.window.ring.state(batch.grant.slot) is SlotState.LEASED
    assert stream.window.batches == {(0, 0): batch}


def test_not_if_there_is_no_ring():
    assert not lose(stream_of(0, spec=OF_FILES), 0, 1)
