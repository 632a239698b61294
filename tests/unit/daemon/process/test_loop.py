"""The loop: descriptors, timers and work in between, one after another in one thread."""

from __future__ import annotations

import contextlib
import os

import pytest

from prefetchd.daemon.process import loop as loop_module
from prefetchd.daemon.process.loop import LONGEST_WAIT_S, Loop


class Clock:
    """monotonic() that moves only when somebody waits."""

    def __init__(self):
        self.now_s = 1000.0

    def monotonic(self):
        return self.now_s


@pytest.fixture
def loop():
    found = Loop()
    yield found
    found.close()


@pytest.fixture
def clock(loop, monkeypatch):
    """A loop that skips its waits, and the clock that tells how long they would have been."""
    found = Clock()
    poll = loop._poll

    def skip(timeout_s):
        ready = poll(0)
        if not ready:
            found.now_s += timeout_s
        return ready

    monkeypatch.setattr(loop_module, "time", found)
    monkeypatch.setattr(loop, "_poll", skip)
    return found


@pytest.fixture
def pipes():
    """pipe() makes (reading, writing), closed at the end unless they are already."""
    made = []

    def make():
        made.append(os.pipe())
        return made[-1]

    yield make
    for fd in (fd for pair in made for fd in pair):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_a_callback_runs_whenever_there_is_something_to_read(loop, pipes):
    reading, writing = pipes()
    heard = []

    def read():
        heard.append(os.read(reading, 1))
        if len(heard) == 3:
            loop.stop()

    loop.watch(reading, read)
    os.write(writing, b"abc")
    loop.run()
    assert heard == [b"a", b"b", b"c"]


def test_writes_are_watched_only_while_asked_for(loop, pipes):
    _, writing = pipes()
    rounds = []

    def written():
        rounds.append("write")
        loop.watch_writes(writing, None)
        loop.call_later(0.0, loop.stop)

    loop.watch(writing, lambda: rounds.append("read"))
    loop.watch_writes(writing, written)
    loop.run()
    assert rounds == ["write"]


def test_what_an_earlier_callback_of_the_round_unwatched_is_not_called(loop, pipes):
    pairs = [pipes() for _ in range(6)]
    called = []

    def first_come(mine):
        called.append(mine)
        for reading, _ in pairs:
            if reading != mine:
                loop.unwatch(reading)
        loop.stop()

    for reading, writing in pairs:
        loop.watch(reading, lambda reading=reading: first_come(reading))
        os.write(writing, b"x")
    loop.run()
    assert len(called) == 1


def test_a_number_that_is_given_anew_within_a_round_gets_no_event_of_its_former_owner(loop, pipes):
    pairs = [pipes() for _ in range(2)]
    called = []

    def swap(mine):
        called.append("old")
        other = next(reading for reading, _ in pairs if reading != mine)
        loop.unwatch(other)
        quiet, _ = pipes()
        os.dup2(quiet, other)
        loop.watch(other, lambda: called.append("new"))
        loop.stop()

    for reading, writing in pairs:
        loop.watch(reading, lambda reading=reading: swap(reading))
        os.write(writing, b"x")
    loop.run()
    assert called == ["old"]


def test_unwatching_what_is_not_watched_is_an_error(loop, pipes):
    reading, _ = pipes()
    with pytest.raises(KeyError):
        loop.unwatch(reading)


def test_timers_run_in_order_of_time_then_of_asking(loop, clock):
    ran = []
    for name, delay_s in (("c", 5.0), ("a", 1.0), ("b1", 2.0), ("b2", 2.0), ("now", 0.0)):
        loop.call_later(delay_s, lambda name=name: ran.append((name, clock.now_s - 1000.0)))
    loop.call_later(6.0, loop.stop)
    loop.run()
    assert [name for name, _ in ran] == ["now", "a", "b1", "b2", "c"]
    assert [at_s for _, at_s in ran] == pytest.approx([0.0, 1.0, 2.0, 2.0, 5.0])


def test_a_timer_that_asks_for_another_at_once_lets_the_others_have_their_turn(loop, clock, pipes):
    reading, writing = pipes()
    turns = []

    def again():
        turns.append("timer")
        loop.call_later(0.0, again)

    def read():
        turns.append("read")
        loop.stop()

    loop.watch(reading, read)
    loop.call_later(0.0, lambda: os.write(writing, b"x"))
    loop.call_later(0.0, again)
    loop.run()
    assert "read" in turns
    assert len(turns) < 10


def test_no_wait_is_longer_than_the_longest(loop, clock):
    rounds = []
    loop.after_each(lambda: rounds.append(clock.now_s - 1000.0) or (len(rounds) == 3 and loop.stop()))
    loop.call_later(100.0, lambda: None)
    loop.run()
    assert rounds == pytest.approx([LONGEST_WAIT_S, 2 * LONGEST_WAIT_S, 3 * LONGEST_WAIT_S])


def test_work_in_between_goes_step_by_step_with_events_between_the_steps(loop, clock, pipes):
    reading, writing = pipes()
    turns = []

    def work(name, steps):
        left = [steps]

        def step():
            turns.append(name)
            left[0] -= 1
            return left[0] == 0

        return step

    def read():
        os.read(reading, 1)
        turns.append("event")

    loop.watch(reading, read)
    loop.in_between(work("long", 5))
    loop.in_between(work("short", 2))
    os.write(writing, b"xxx")
    loop.call_later(1.0, loop.stop)
    loop.run()
    assert turns == ["event", "long", "event", "short", "event", "long", "short", "long", "long", "long"]
    assert clock.now_s == pytest.approx(1001.0), "while there was work it did not wait, and afterwards it did"


def test_something_runs_after_each_round(loop, pipes):
    reading, writing = pipes()
    turns = []

    def read():
        turns.append(os.read(reading, 1))
        if len(turns) >= 5:
            loop.stop()

    loop.watch(reading, read)
    loop.after_each(lambda: turns.append("settle"))
    os.write(writing, b"abc")
    loop.run()
    assert turns == [b"a", "settle", b"b", "settle", b"c", "settle"]


def test_an_exception_of_a_callback_comes_out(loop):
    def fail():
        raise ArithmeticError("of the callback")

    loop.call_later(0.0, fail)
    with pytest.raises(ArithmeticError):
        loop.run()


def test_a_loop_can_run_again(loop, clock):
    for _ in range(2):
        loop.call_later(1.0, loop.stop)
        loop.run()
    assert clock.now_s == pytest.approx(1002.0)
