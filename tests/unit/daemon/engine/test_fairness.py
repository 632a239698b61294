"""Whose turn it is, rule by rule. What follows from the rules, over any time, is in tests/property/test_fairness.py."""

from __future__ import annotations

from prefetchd.daemon.engine.fairness import PRICE_OF_PLENTY, Account, FairShares


def run_turns(short: dict[str, bool], seconds: dict[str, float], turns: int, shares=None, accounts=None) -> str:
    """Who has had which turn."""
    shares = shares or FairShares()
    accounts = accounts if accounts is not None else {}
    order = ""
    for _ in range(turns):
        for name in short:
            accounts.setdefault(name, Account())
        name = min(short, key=lambda each: (accounts[each].tag_s(short=short[each]), each))
        shares.end(accounts[name], shares.begin(accounts[name], 0.0, short=short[name]), seconds[name])
        order += name
    return order


def test_the_lowest_tag_is_next():
    assert run_turns({"a": True, "b": True}, {"a": 1.0, "b": 1.0}, 6) == "ababab"
    assert run_turns({"a": True, "b": True}, {"a": 3.0, "b": 1.0}, 8) == "abbbabbb"


def test_plenty_has_its_price():
    order = run_turns({"a": True, "b": False}, {"a": 1.0, "b": 1.0}, 9 * 20)
    assert order.count("b") == 20
    assert order[18:].startswith("abaaaaaaaa")
    assert run_turns({"a": False, "b": False}, {"a": 1.0, "b": 1.0}, 4) == "abab", "of all alike it is none"


def test_who_becomes_short_is_next_and_not_paid_for_what_it_has_left_to_others():
    shares, accounts = FairShares(), {}
    run_turns({"a": True, "b": False}, {"a": 1.0, "b": 1.0}, 90, shares, accounts)
    assert run_turns({"a": True, "b": True}, {"a": 1.0, "b": 1.0}, 6, shares, accounts) == "bababa"


def test_who_comes_late_neither_pays_nor_is_paid():
    shares, accounts = FairShares(), {}
    run_turns({"a": True}, {"a": 1.0}, 1000, shares, accounts)
    assert run_turns({"a": True, "b": True}, {"a": 1.0, "b": 1.0}, 6, shares, accounts) == "bababa"


def test_a_task_is_charged_what_it_has_taken():
    shares, account = FairShares(), Account()
    charge = shares.begin(account, 5.0, short=False)
    assert (account.tag_s(short=True), account.tag_s(short=False)) == (5.0, 5.0 * PRICE_OF_PLENTY)
    shares.end(account, charge, 1.0)
    assert (account.tag_s(short=True), account.tag_s(short=False)) == (1.0, 1.0 * PRICE_OF_PLENTY)
    shares.begin(account, 1.0, short=True)
    shares.end(account, charge, 1.0)
    assert account.extra_s == 0.0, "what was forgotten is not given back"


def test_what_was_paid_for_plenty_is_forgotten_when_the_stream_becomes_short():
    shares, account = FairShares(), Account()
    shares.begin(account, 1.0, short=False)
    assert account.tag_s(short=False) == PRICE_OF_PLENTY
    shares.begin(account, 1.0, short=True)
    assert account.tag_s(short=False) == account.tag_s(short=True) == 2.0
