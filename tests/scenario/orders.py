"""A trainer as a process of its own that does what it is told, so that it can be killed or stopped in the middle.

A line of JSON in: a verb and its arguments. A line of JSON out: the answer.
"""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


class Trainer:
    """On Numbers(samples) in batches of 4; from the test's side."""

    def __init__(self, daemon) -> None:
        paths = [str(ROOT), str(ROOT / "client")]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.scenario.orders"],
            env=daemon.environment | {"PYTHONPATH": ":".join([*paths, *filter(None, sys.path)])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, *what: object) -> Any:
        """Tells it, and waits for its answer."""
        self.tell(*what)
        return self.hear()

    def tell(self, *what: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


@contextlib.contextmanager
def trainer(daemon) -> Iterator[Trainer]:
    """Killed at the end."""
    found = Trainer(daemon)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()
        for pipe in (found.process.stdin, found.process.stdout):
            assert pipe is not None
            pipe.close()


def _obey() -> None:
    from prefetchd_client import PrefetchLoader

    from tests.scenario.datasets import Numbers

    loader: Any = None
    iterator: Any = None
    for line in sys.stdin:
        match json.loads(line):
            case ["begin", stream, samples, buffer]:
                loader = PrefetchLoader(Numbers(samples), batch_size=4, buffer=buffer, stream=stream)
                iterator = iter(loader)
                answer: object = loader.stats()["stream"]
            case ["next", count]:
                answer = [index[0].item() for _, (_, index) in zip(range(count), iterator)]
            case ["close"]:
                loader.close()
                answer = "closed"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _obey()
