"""Of whom a program is asked, and until when."""

from __future__ import annotations

from prefetchd.daemon.engine.stream.program_requests import ProgramRequests

FIRST, SECOND = 1, 2


def test_who_is_asked_for_a_program_or_a_fork_is_to_hand_it_over_once():
    requests = ProgramRequests()
    assert (requests.program_from, requests.fork_from) == (0, 0)
    requests.program_from, requests.fork_from = FIRST, SECOND
    assert requests.is_asked(FIRST)
    assert requests.is_asked(SECOND)
    assert not requests.is_asked(3)
    requests.end(FIRST)
    assert not requests.is_asked(FIRST)
    assert requests.is_asked(SECOND), "another one is asked still"


def test_who_sends_its_program_in_place_of_a_fork_is_asked_for_neither():
    requests = ProgramRequests()
    requests.program_from = requests.fork_from = FIRST
    requests.end(FIRST)
    assert (requests.program_from, requests.fork_from) == (0, 0)
