"""The sampler that goes on where a checkpoint was taken."""

from __future__ import annotations

from prefetchd_demo.order import SeededOrder


def epoch(order, number):
    order.set_epoch(number)
    return list(order)


def test_each_epoch_has_an_order_of_its_own_the_same_each_time():
    order = SeededOrder(20)
    first, second = epoch(order, 0), epoch(order, 1)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second
    assert epoch(SeededOrder(20), 1) == second
    assert len(order) == 20


def test_what_is_skipped_is_skipped_once():
    order = SeededOrder(20)
    whole = epoch(order, 3)
    order.skip_once(8)
    assert epoch(order, 3) == whole[8:]
    assert epoch(order, 3) == whole
