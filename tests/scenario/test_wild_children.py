"""What a worker, planner or zygote says that none of them would say costs its own stream at most."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import socket

import pytest

from prefetchd.wire.messages import (
    Forked,
    ForkWanted,
    Message,
    Output,
    PlaceCursor,
    Published,
    RingOpened,
    StreamFailed,
    Welcome,
)
from tests.scenario.forked import forked
from tests.scenario.fuzzed_trainer import FuzzedTrainer
from tests.scenario.raw_peer import Peer, trainer_hello
from tests.scenario.wild_children import WildVoice, WildZygote, take_what_comes, wild_planners, wild_workers

MAKERS = {
    "workers": wild_workers,
    "planners": wild_planners,
    "zygotes": lambda seed: {"dataset": WildZygote(WildVoice(seed, 1)), "num_workers": 1},
}
ROUNDS = {"workers": 2, "planners": 6, "zygotes": 4}
"""In a round some hundred workers say something."""
MOST_ROUNDS = 30


def log_of(daemon) -> list[dict]:
    return [json.loads(line) for line in daemon.paths.log.read_text().splitlines()]


def was_wild(daemon) -> bool:
    """Whether something was said for which its process was killed: that is chance."""
    return any("killed by the daemon" in str(each) or each["event"] == "worker" for each in log_of(daemon))


# A wild worker may well say that its samples vary.
@pytest.mark.filterwarnings("ignore:a sample of the stream 'wild .* is another one:UserWarning")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("who", MAKERS)
def test_another_trainer_does_not_notice_wild_children(daemon, who, monkeypatch, capfd):
    daemon.start()
    with FuzzedTrainer() as trainer:
        trainer.until_it_has_taken(20)
        pid = daemon.pid
        if who == "zygotes":
            monkeypatch.setenv("PREFETCHD_START", "exec")
        for seed in range(MOST_ROUNDS):
            take_what_comes(stream=f"wild {who} {seed}", **MAKERS[who](seed))
            assert daemon.pid == pid, "the daemon died: " + daemon.command("logs").stdout
            if seed + 1 >= ROUNDS[who] and was_wild(daemon):
                break
        trainer.until_it_has_taken(trainer.taken + 20)
        assert not trainer.wrong
    assert was_wild(daemon)
    told = log_of(daemon)
    assert [each for each in told if "traceback" in each] == [], "a fault of the daemon's own"


# --- a zygote that was forked from a trainer ---

WILD_WORDS = 30


def speak_wildly(sock: socket.socket, seed: int) -> None:
    """Says what no zygote would, and in the end what nobody would; then it does nothing any more."""
    os.setsid()
    voice = WildVoice(seed)
    voice.dice = random.Random(seed)
    with contextlib.suppress(OSError):
        for _ in range(WILD_WORDS):
            voice.say(sock)
        sock.send(b"\xc1")
    signal.pause()


def answer_to_a_wild_fork(daemon, seed: int) -> Message | None:
    """Hands over a process that is no zygote of ours. What its trainer is told then; the process is dead by now."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reading, writing = os.pipe()
    pid, told = forked(lambda: speak_wildly(ours, seed))
    os.close(told)
    fds = [os.pidfd_open(pid), theirs.detach(), reading]
    try:
        with Peer(daemon.socket) as peer:
            peer.say(dataclasses.replace(trainer_hello(f"wild fork {seed}"), forks=True))
            assert isinstance(peer.hear(), Welcome)
            peer.say(Forked(pid), fds)
            peer.say(PlaceCursor(1, 0, 0, False))
            while isinstance(answer := peer.hear(), (RingOpened, Output, Published)):
                pass
            _, status = os.waitpid(pid, 0)
            assert os.WTERMSIG(status) == signal.SIGKILL
            return answer
    finally:
        ours.close()
        for fd in (*fds, writing):
            os.close(fd)


def test_another_trainer_does_not_notice_a_wild_fork(daemon):
    daemon.start()
    with FuzzedTrainer() as trainer:
        trainer.until_it_has_taken(20)
        pid = daemon.pid
        for seed in range(12):
            answer = answer_to_a_wild_fork(daemon, seed)
            assert isinstance(answer, (StreamFailed, ForkWanted)), (seed, answer)
            assert daemon.pid == pid, "the daemon died: " + daemon.command("logs").stdout
        trainer.until_it_has_taken(trainer.taken + 20)
        assert not trainer.wrong
    assert was_wild(daemon)
    assert [each for each in log_of(daemon) if "traceback" in each] == [], "a fault of the daemon's own"
