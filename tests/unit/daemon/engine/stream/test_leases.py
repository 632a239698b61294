"""The rules of leases, one by one."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.leases import Leases
from prefetchd.ring.policy import SlotState
from tests.unit.daemon.engine.stream.rooms import KEY, ready, walks, window_of

OTHER = ("another", 1)


def test_rule_1_a_lease_ends_when_its_holder_releases_the_batch():
    window = window_of(4)
    leases, cursor, batch = Leases(window), walks(window), ready(window, 0)
    leases.lease(cursor, batch, exclusive=True)
    assert leases.held("trainer") == 1
    leases.release(KEY, batch.grant.slot, batch.grant.generation)
    assert leases.held("trainer") == 0


def test_rule_1_a_late_or_unknown_release_is_harmless():
    window = window_of(4)
    leases, cursor, batch = Leases(window), walks(window), ready(window, 0)
    leases.lease(cursor, batch, exclusive=True)
    slot, generation = batch.grant.slot, batch.grant.generation
    leases.release(KEY, slot, generation - 1)
    leases.release(KEY, slot + 1, generation)
    leases.release(OTHER, slot, generation)
    assert leases.is_held("trainer", slot)
    leases.release(KEY, slot, generation)
    leases.release(KEY, slot, generation)
    assert not leases.is_held("trainer", slot)


def test_rule_2_what_is_offered_without_a_copy_leaves_the_window():
    window = window_of(4)
    leases, cursor = Leases(window), walks(window)
    alone, shared = ready(window, 0), ready(window, 1)
    leases.lease(cursor, alone, exclusive=True)
    leases.lease(cursor, shared, exclusive=False)
    assert set(window.batches) == {(0, 1)}
    assert window.lent == {(0, 0): 1}


def test_rule_4a_what_was_recalled_is_evicted_when_it_is_given_back():
    window = window_of(4)
    leases, cursor, batch = Leases(window), walks(window), ready(window, 0)
    leases.lease(cursor, batch, exclusive=True)
    batch.recalled = True
    leases.give_back(KEY, (0, 0))
    assert window.ring.state(batch.grant.slot) is SlotState.FREE
    assert window.batches == {}


def test_rule_4b_what_was_offered_without_a_copy_is_ready_again_when_it_is_given_back():
    window = window_of(4)
    leases, cursor, batch = Leases(window), walks(window), ready(window, 0)
    leases.lease(cursor, batch, exclusive=True)
    leases.give_back(KEY, (0, 0))
    assert window.batches == {(0, 0): batch}
    assert window.ring.state(batch.grant.slot) is SlotState.READY


def test_rule_4b_what_its_holder_has_had_is_not_offered_again():
    window = window_of(4)
    leases, cursor, batch = Leases(window), walks(window), ready(window, 0)
    leases.lease(cursor, batch, exclusive=True)
    leases.release(KEY, batch.grant.slot, batch.grant.generation)
    assert window.batches == {}
    assert window.ring.state(batch.grant.slot) is SlotState.FREE


def test_rule_4c_a_shared_batch_stays_while_another_cursor_wants_it():
    window = window_of(4)
    leases, cursor, batch = Leases(window), walks(window), ready(window, 0)
    walks(window, key=OTHER)
    leases.lease(cursor, batch, exclusive=False)
    cursor.next = cursor.offered = (0, 1)
    leases.release(KEY, batch.grant.slot, batch.grant.generation)
    assert window.batches == {(0, 0): batch}


def test_rule_4c_a_shared_batch_goes_once_nobody_wants_it():
    window = window_of(4)
    leases, cursor, batch = Leases(window), walks(window), ready(window, 0)
    leases.lease(cursor, batch, exclusive=False)
    cursor.next = cursor.offered = (0, 1)
    window.cursors_moved()
    leases.release(KEY, batch.grant.slot, batch.grant.generation)
    assert window.batches == {}


def test_rule_5_who_has_no_connection_keeps_its_leases_until_it_has_died():
    window = window_of(4)
    leases, cursor, batch = Leases(window), walks(window), ready(window, 0)
    leases.lease(cursor, batch, exclusive=True)
    leases.keep_for_absent("trainer", record=3)
    assert leases.others_hold("anybody")
    leases.resolve_absent(3, (), {})
    assert not leases.others_hold("anybody")


def test_only_what_nobody_has_yielded_or_awaits_can_be_recalled():
    window = window_of(4)
    leases, cursor = Leases(window), walks(window)
    batches = [ready(window, step) for step in range(3)]
    for batch in batches:
        leases.lease(cursor, batch, exclusive=True)
    cursor.offered = (0, 3)
    assert leases.recallable(urgent=False) == batches[1:], "the first is awaited"
    cursor.next = (0, 2)
    assert leases.recallable(urgent=False) == []
    assert leases.recallable(urgent=True) == batches[2:], "no next() waits for it"
