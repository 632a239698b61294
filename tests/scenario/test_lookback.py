"""A trainer is killed and resumes earlier: the batches behind it are there, and what it wrote to is made anew."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from tests.scenario.datasets import equal
from tests.scenario.lookback_trainer import BATCH, HELD, TAKEN, Told, loader
from tests.scenario.oracle import epoch_batches
from tests.scenario.waiting import fills_no_more, is_gone, stream_when, until


def train(daemon, calls, written):
    """A trainer takes TAKEN batches, writes into some, holds the last ones, and is killed."""
    command = [sys.executable, "-m", "tests.scenario.lookback_trainer", str(calls), *map(str, written)]
    with subprocess.Popen(command, env=daemon.environment, stdin=-1, stdout=-1, text=True) as trainer:
        assert trainer.stdout.readline() == "taken\n"
        trainer.kill()


def fill_of(stream):
    return (stream["ring"]["ready"], stream["ring"]["behind"]) if stream["ring"] else (0, 0)


def is_left(stream):
    """True when nothing more comes of a trainer that is dead, and all of it outlives the daemon."""
    return fill_of(stream) == (16, 8) and stream["program_kept"] and fills_no_more(stream)


def resume(calls, step):
    """The batches from `step` to the one after the last that the trainer took."""
    with loader(calls) as found:
        found.load_state_dict({**found.state_dict(), "step": step})
        iterator = iter(found)
        return [[each.clone() for each in next(iterator)] for _ in range(step, TAKEN + 1)]


def die_before_the_first_batch(daemon, calls):
    """Another trainer takes the consumer record of the one that died, and is killed before it has anything to hold."""
    code = "import sys; from pathlib import Path; from tests.scenario.test_lookback import TAKEN, resume; "
    code += "resume(Path(sys.argv[1]), TAKEN)"
    killed = {"PREFETCHD_KILL_POINTS": "client.mark.unwritten"}
    trainer = subprocess.run([sys.executable, "-c", code, str(calls)], env=daemon.environment | killed, check=False)
    assert trainer.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    "others",
    [(), ("daemon",), pytest.param(("next trainer", "daemon"), marks=pytest.mark.slow)],
    ids=" and ".join,
)
def test_batches_from_behind_are_the_same_and_only_what_was_written_to_is_made_again(daemon, tmp_path, others):
    calls = tmp_path / "calls"
    written = [14, 17, TAKEN - 1]
    assert max(written) >= TAKEN - HELD, "one of those that are written to is held when its trainer dies"
    daemon.start()
    train(daemon, calls, written)
    # Behind them comes what the dead trainer held, once its death is known.
    stream_when(daemon, "behind", is_left, "all is ready that lies ahead")
    if "next trainer" in others:
        die_before_the_first_batch(daemon, calls)
    if "daemon" in others:
        pid = daemon.pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: is_gone(pid), "the daemon is dead")
        daemon.start()
    made_before = len(Told(calls).steps())
    first = TAKEN - 8
    found = resume(calls, first)
    expected = epoch_batches(Told(tmp_path / "oracle"), 0, batch_size=BATCH, seed=5)
    assert equal(found, expected[first : TAKEN + 1])
    made_again = Told(calls).steps()[made_before:]
    # All that was ready, behind as well as ahead, where half has made room for the run's beginning.
    kept = range(first, TAKEN + 8)
    assert Counter(step for step in made_again if step in kept) == dict.fromkeys(written, BATCH)


def test_a_batch_behind_is_what_its_digest_says_even_for_a_loader_that_lives(daemon, tmp_path):
    calls = tmp_path / "calls"
    daemon.start()
    with loader(calls) as found:
        iterator = iter(found)
        for step in range(6):
            batch = next(iterator)
            if step == 3:
                batch[1].fill_(7.0)
        del batch
        made_before = len(Told(calls).steps())
        found.load_state_dict({**found.state_dict(), "step": 2})
        again = [[each.clone() for each in each] for each, _ in zip(found, range(4))]
        expected = epoch_batches(Told(tmp_path / "oracle"), 0, batch_size=BATCH, seed=5)
        assert equal(again, expected[2:6])
        assert sorted({step for step in Told(calls).steps()[made_before:] if step < 6}) == [3]
