"""What was dropped is released only after every device, and every stream that was told of, has passed."""

from __future__ import annotations

from collections import deque

import pytest
from prefetchd_client.device.fences import Fences

from tests.unit.client.device.fake_device import FakeDevice, FakeEvent

MOST = 2


class TwoDevices(FakeDevice):
    """Nothing is done on their streams, `here` and `there`, before drain()."""

    def __init__(self) -> None:
        super().__init__()
        self.here, self.there = self.current_stream(), self.new_stream()
        self.elsewhere = [self.there]

    def drain(self, stream) -> None:
        self.work_until(self.record(stream).mark)


@pytest.fixture
def device():
    return TwoDevices()


@pytest.fixture
def fences(device):
    return Fences(device, lambda: MOST)


def batches(*slots: int) -> deque[tuple[int, int, int]]:
    return deque((1, slot, 1) for slot in slots)


@pytest.mark.parametrize("first", ["here", "there"])
def test_nothing_is_released_before_both_devices_have_passed(device, fences, first):
    dropped = batches(0, 1)
    assert fences.passed(dropped) == 0
    device.drain(getattr(device, first))
    assert fences.passed(dropped) == 0
    device.drain(device.there if first == "here" else device.here)
    assert fences.passed(dropped) == 2


def dropped_one_by_one(device, fences, describe_exit):
    """Batches 0 and 1, which both devices have passed, and a stream that one of them waits for as well."""
    side = device.new_stream()
    fences.record_stream(describe_exit, side)
    dropped = batches(0)
    fences.passed(dropped)
    dropped.extend(batches(1))
    fences.passed(dropped)
    device.drain(device.here)
    device.drain(device.there)
    return dropped, side


def test_a_stream_that_was_told_of_is_waited_for_with_its_own_batch(device, fences):
    dropped, side = dropped_one_by_one(device, fences, describe_exit=1)
    assert fences.passed(dropped) == 1
    dropped.popleft()
    device.drain(side)
    assert fences.passed(dropped) == 1


def test_batches_are_released_in_the_order_of_their_drops(device, fences):
    dropped, side = dropped_one_by_one(device, fences, describe_exit=0)
    assert fences.passed(dropped) == 0
    device.drain(side)
    assert fences.passed(dropped) == 2


def test_a_trainer_that_is_too_far_ahead_waits_for_both(device, fences):
    dropped = batches()
    passed = []
    for slot in range(MOST + 1):
        dropped.extend(batches(slot))
        passed.append(fences.passed(dropped))
    assert passed == [0, 0, 1], "the oldest fence was waited for, and no other"
    assert (len(device.here.line), len(device.there.line)) == (MOST, MOST)


def test_an_event_that_cannot_be_had_leaves_all_of_them_for_the_next_time(device, fences, monkeypatch):
    def fail(stream):
        if stream is device.there:
            raise RuntimeError("CUDA error")
        return FakeDevice.record(device, stream)

    dropped = batches(0, 1)
    side = device.new_stream()
    fences.record_stream(1, side)
    with monkeypatch.context() as patched:
        patched.setattr(device, "record", fail)
        assert fences.passed(dropped) == 0
    device.drain(device.here)
    device.drain(device.there)
    assert fences.passed(dropped) == 0
    device.drain(device.here)
    device.drain(device.there)
    assert fences.passed(dropped) == 0, "the other stream is still known of"
    device.drain(side)
    assert fences.passed(dropped) == 2


def test_an_event_that_cannot_be_asked_loses_none_that_has_passed(device, fences, monkeypatch):
    dropped = batches(0)
    fences.passed(dropped)
    dropped.extend(batches(1))
    fences.passed(dropped)
    device.synchronize()
    asked = []

    def query(event):
        asked.append(event)
        if len(asked) == 3:
            raise RuntimeError("CUDA error")
        return event.done

    monkeypatch.setattr(FakeEvent, "query", query)
    assert fences.passed(dropped) == 1
    dropped.popleft()
    assert fences.passed(dropped) == 1


def test_none_is_released_and_nothing_asked_while_a_graph_is_captured(device, fences):
    dropped = batches(0)
    device.capturing = True
    assert fences.passed(dropped) == 0
    assert device.violations == []
    device.capturing = False
    fences.passed(dropped)
    device.synchronize()
    assert fences.passed(dropped) == 1
