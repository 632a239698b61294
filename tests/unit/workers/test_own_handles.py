"""Which descriptors a program's objects hold: its own stay open in a fork of the trainer."""

from __future__ import annotations

import functools
import io
import multiprocessing
import select
import socket

import pytest

from prefetchd.workers import own_handles as module
from prefetchd.workers.own_handles import own_handles


class Holder:
    def __init__(self, held) -> None:
        self.held = held

    def method(self) -> None: ...


class Slotted:
    __slots__ = ("held",)

    def __init__(self, held) -> None:
        self.held = held


def in_a_closure(held):
    return lambda: held


def in_a_generator(held):
    def generate(held):
        yield 1
        yield held

    generator = generate(held)
    next(generator)
    return generator


WAYS = {
    "an attribute": Holder,
    "a slot": Slotted,
    "a list of lists": lambda held: [[1, "x", [held]]],
    "a dict": lambda held: {"x": {"y": held}},
    "a closure": in_a_closure,
    "a default": lambda held: lambda held=held: held,
    "a partial": lambda held: functools.partial(print, held),
    "a bound method": lambda held: Holder(held).method,
    "a generator": in_a_generator,
    "itself": lambda held: held,
}


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("way", WAYS)
def test_a_socket_is_found_wherever_the_program_has_it(pair, way):
    ours, theirs = pair
    assert own_handles([WAYS[way](ours)], {ours.fileno(), theirs.fileno()}) == {ours.fileno()}


def test_pipes_files_and_what_waits_for_them_are_found_too():
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer, open("/dev/null") as text, select.epoll() as epoll:
        among = {reader.fileno(), writer.fileno(), text.fileno(), epoll.fileno()}
        assert own_handles([[reader, writer], {"file": text}, epoll], among) == among
        assert own_handles([reader, text], among) == {reader.fileno(), text.fileno()}


def test_a_closed_one_is_none(pair):
    ours, theirs = pair
    with socket.socket() as closed, open("/dev/null") as file:
        pass
    assert own_handles([closed, file, theirs], {ours.fileno(), theirs.fileno()}) == {theirs.fileno()}


class Proxy:
    """Looks like another object, which does not come."""

    @property
    def __class__(self):
        raise LookupError("the object is not there")

    def __getattr__(self, name):
        raise LookupError(name)

    def fileno(self):
        raise SystemExit("asked")

    def __len__(self):
        raise SystemExit("asked")


class Raw(io.RawIOBase):
    def readable(self):
        return True

    def fileno(self):
        raise SystemExit("asked")


def test_no_code_of_the_users_runs(pair):
    """Found as a fork that died at birth of a proxy whose __class__ raised."""
    ours, _ = pair
    held = [Proxy(), io.BufferedReader(Raw()), {"proxy": Proxy(), "socket": ours}]
    assert own_handles(held, {ours.fileno()}) == {ours.fileno()}


def test_what_is_near_is_found_however_much_lies_beside_it(pair):
    """Found as a depth-first walk that came to its limit in the rows."""
    ours, _ = pair
    rows = [[[number] for number in range(900)] for _ in range(100)]
    assert own_handles([{"socket": ours, "rows": rows}], {ours.fileno()}) == {ours.fileno()}
    assert own_handles([{"rows": rows, "socket": ours}], {ours.fileno()}) == {ours.fileno()}


def test_no_more_is_looked_at_than_is_worth_while(pair, monkeypatch):
    ours, _ = pair
    chain = ours
    for _ in range(200):
        chain = [chain]
    assert own_handles([chain], {ours.fileno()}) == {ours.fileno()}
    monkeypatch.setattr(module, "MOST_OBJECTS", 100)
    assert own_handles([chain], {ours.fileno()}) == set()


def test_what_modules_hold_is_not_the_programs(pair):
    ours, _ = pair
    module.kept_for_a_test = ours
    try:
        assert own_handles([own_handles, module, Holder], {ours.fileno()}) == set()
    finally:
        del module.kept_for_a_test
