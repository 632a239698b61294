"""When a stream's batches cannot be stored, and when that is over."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.store_fault import OVER_AFTER_S, StoreFault


def test_each_kind_of_failure_is_news_once():
    fault = StoreFault()
    assert fault.failed("/a: No space left on device")
    assert not fault.failed("/b: No space left on device")
    assert fault.failed("/b: Read-only file system")
    assert not fault.failed("/a: No space left on device"), "it has been told, and is not over"
    assert fault.reason == "/a: No space left on device"


def test_it_is_over_when_batches_are_stored_and_none_has_failed_for_a_while():
    fault = StoreFault()
    fault.failed("/a: No space left on device")
    fault.stored()
    assert not fault.end_if_over(100.0)
    assert not fault.end_if_over(100.0 + OVER_AFTER_S - 0.1)
    assert fault.end_if_over(100.0 + OVER_AFTER_S)
    assert fault.reason == ""
    assert not fault.end_if_over(200.0), "it ends once"
    assert fault.failed("/a: No space left on device"), "and is news when it comes again"


def test_it_is_not_over_as_long_as_batches_fail_or_none_was_stored():
    fault = StoreFault()
    fault.failed("full")
    for second in range(20):
        assert not fault.end_if_over(100.0 + second), "nobody has tried"
    for second in range(20):
        fault.stored()
        fault.failed("full")
        assert not fault.end_if_over(200.0 + second)
    assert fault.reason == "full"


def test_without_a_fault_nothing_ends():
    fault = StoreFault()
    fault.stored()
    assert not fault.end_if_over(100.0)
