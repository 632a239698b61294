"""One thread inside, and what the others are told."""

from __future__ import annotations

import threading

import pytest
from prefetchd_client.loader.single_thread_guard import SingleThreadGuard

from prefetchd.wire.errors import CallerError


def tried_elsewhere(turns: SingleThreadGuard) -> list[str]:
    """What another thread is told that comes now."""
    told: list[str] = []

    def come() -> None:
        try:
            with turns:
                told.append("")
        except CallerError as error:
            told.append(str(error))

    thread = threading.Thread(target=come)
    thread.start()
    thread.join()
    return told


def test_another_thread_is_refused_while_one_is_inside():
    turns = SingleThreadGuard()
    with turns:
        (told,) = tried_elsewhere(turns)
        assert told.startswith("two threads are in next() of one loader; allowed: one at a time")
        assert len(tried_elsewhere(turns)) == 1, "and it has not let itself in by that"
    assert tried_elsewhere(turns) == [""]


def test_an_error_inside_ends_the_turn():
    turns = SingleThreadGuard()
    with pytest.raises(KeyboardInterrupt), turns:
        raise KeyboardInterrupt
    assert tried_elsewhere(turns) == [""]


def test_a_turn_that_a_signal_has_cut_short_is_taken_up_by_the_same_thread():
    turns = SingleThreadGuard()
    turns.__enter__()  # and then a signal, before the lines inside
    with turns:
        pass
    assert tried_elsewhere(turns) == [""]
