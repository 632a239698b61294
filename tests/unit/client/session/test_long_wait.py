"""What a trainer's stderr says of a long wait: the daemon's words when it has some, else the client's own."""

from __future__ import annotations

import pytest
from prefetchd_client.session import long_wait
from prefetchd_client.session.long_wait import DAEMON_NAMES_WITHIN_S, NAME_AFTER_S, NAME_AGAIN_S, LongWait

from prefetchd.wire.messages import WaitNamed


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_ns(self) -> int:
        return int(self.now_s * 1e9)


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(long_wait, "time", made)
    return made


def test_the_client_speaks_when_the_daemon_has_not(clock, capfd):
    wait = LongWait("imagenet", 2, 17)
    assert wait.name_at_s == NAME_AFTER_S + DAEMON_NAMES_WITHIN_S
    clock.now_s += wait.name_at_s
    wait.name("the daemon does not say why")
    assert capfd.readouterr().err == (
        "prefetchd: waiting for epoch 2 step 17 of stream 'imagenet' for 63 s: the daemon does not say why\n"
    )
    assert wait.name_at_s == pytest.approx(wait.waited_s + NAME_AGAIN_S)


def test_the_daemons_words_put_the_clients_off(clock, capfd):
    wait = LongWait("s", 0, 5)
    clock.now_s += NAME_AFTER_S + 0.2
    wait.named(WaitNamed(1, 0, 5, "worker 3 has been at dataset[5] for 60 s:\n    a.py:3 in f\n  timeout= ends it"))
    assert capfd.readouterr().err.splitlines() == [
        "prefetchd: waiting for epoch 0 step 5 of stream 's' for 60 s: worker 3 has been at dataset[5] for 60 s:",
        "prefetchd:     a.py:3 in f",
        "prefetchd:   timeout= ends it",
    ]
    assert wait.name_at_s > wait.waited_s + NAME_AGAIN_S


def test_it_counts_from_the_call(clock):
    wait = LongWait("s", 0, 0)
    clock.now_s += 0.25
    assert (wait.waited_s, wait.waited_us) == (0.25, 250_000)
