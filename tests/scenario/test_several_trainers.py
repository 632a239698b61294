"""Two processes of one script on one daemon: streams of their own, streams that they share, and the death of one."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import textwrap

import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.wire.errors import CallerError
from tests.scenario.datasets import Numbers
from tests.scenario.waiting import stream_when

# A line of JSON in: what to do, with which loader. A line of JSON out: the answer.
TRAINER = """
    import json, sys
    from prefetchd_client import PrefetchLoader
    from tests.scenario.datasets import Numbers

    loaders, iterators, seen = {}, {}, {}

    def begin(key, stream):
        loaders[key] = PrefetchLoader(Numbers(40), batch_size=4, buffer=8, stream=stream)
        iterators[key] = iter(loaders[key])
        seen[key] = next(iterators[key])[1].tolist()
        return loaders[key].stats()["stream"]

    def step(key):
        seen[key] += next(iterators[key])[1].tolist()

    def finish(key):
        for batch, index in iterators.pop(key):
            seen[key] += index.tolist()
            batch.fill_(-1)  # what one writes, the other must not see
            if not (batch == -1).all():
                return "somebody wrote into this batch"
        copies = loaders[key].stats()["private_copies"]
        loaders.pop(key).close()
        return [seen[key] == list(range(40)), copies > 0]

    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        print(json.dumps({"begin": begin, "step": step, "finish": finish}[verb](*arguments)), flush=True)
"""


class Trainer:
    """A process that does what it is told."""

    def __init__(self, daemon, script):
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            env=daemon.environment | {"PYTHONPATH": ":".join(entry for entry in sys.path if entry)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, *what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture(scope="module")
def trainers(shared_daemon, tmp_path_factory):
    script = tmp_path_factory.mktemp("script") / "train.py"
    script.write_text(textwrap.dedent(TRAINER))
    started = [Trainer(shared_daemon, script) for _ in range(2)]
    yield started
    for trainer in started:
        trainer.end()


def both(trainers, *what):
    """Tells both at once, and hears both."""
    for trainer in trainers:
        trainer.tell(*what)
    return [trainer.hear() for trainer in trainers]


def test_processes_of_one_script_get_streams_of_their_own(trainers, shared_daemon):
    names = sorted(both(trainers, "begin", "mine", None))
    assert names[1] == f"{names[0]}#2"
    assert both(trainers, "finish", "mine") == [[True, False]] * 2
    for name in names:
        stream_when(shared_daemon, name)


def test_processes_that_name_a_stream_share_it_and_neither_sees_what_the_other_writes(trainers, shared_daemon):
    assert both(trainers, "begin", "ours", "together") == ["together"] * 2
    stream = stream_when(shared_daemon, "together", lambda found: len(found["consumers"]) == 2, "both consume it")
    assert {each["pid"] for each in stream["consumers"]} == {trainer.process.pid for trainer in trainers}
    with pytest.raises(CallerError, match="in use") as caught:
        PrefetchLoader(Numbers(44), batch_size=4, buffer=8, stream="together")
    assert "stream=" in str(caught.value)
    # Both are there: else the first may be done, and the second need no copies, before it has gone on.
    assert both(trainers, "step", "ours") == [None] * 2
    assert both(trainers, "finish", "ours") == [[True, True]] * 2


def test_a_shared_stream_survives_the_death_of_one_of_its_consumers(trainers, shared_daemon):
    """The last test of the module: one of the two is gone after it."""
    assert both(trainers, "begin", "ours", "bereft") == ["bereft"] * 2
    first, second = trainers
    first.process.kill()
    first.process.wait()
    stream_when(shared_daemon, "bereft", lambda found: len(found["consumers"]) == 1, "the dead one is gone")
    second.tell("finish", "ours")
    assert second.hear()[0] is True


@pytest.mark.slow
def test_trainers_share_what_outlived_their_daemon_and_all_its_trainers(daemon, tmp_path):
    """Found by chaos: the second one got a ring of its own, and every batch was made twice."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINER))
    with contextlib.ExitStack() as stack:

        def start() -> list[Trainer]:
            started = [Trainer(daemon, script) for _ in range(2)]
            for trainer in started:
                stack.callback(trainer.end)
            return started

        former = start()
        assert both(former, "begin", "ours", "together") == ["together"] * 2
        daemon.kill_all()
        for trainer in former:
            trainer.process.kill()
            trainer.process.wait()
        daemon.start()
        living = start()
        assert both(living, "begin", "ours", "together") == ["together"] * 2
        assert both(living, "step", "ours") == [None] * 2
        assert both(living, "finish", "ours") == [[True, True]] * 2
