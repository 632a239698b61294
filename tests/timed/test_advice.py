"""What `prefetchd advise` says is done: with that number of workers the trainer gets what was said, in its range."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest
from prefetchd_client import PrefetchLoader

from tests.timed.situations import Samples

MEASURED_S = 8.0
ASKED = 8


def trained(stream: str, dataset: Samples, workers: int, step_s: float, ask: Callable[[], object] = int) -> float:
    """A trainer's batches a second; calls `ask` in the end, while it is there."""
    arguments = {"batch_size": 4, "buffer": 32, "num_workers": workers, "stream": stream}
    with PrefetchLoader(dataset, **arguments) as loader:
        batches = iter(loader)
        next(batches)
        taken, began_s = 0, time.monotonic()
        while time.monotonic() < began_s + MEASURED_S:
            next(batches)
            time.sleep(step_s)
            taken += 1
        over_s = time.monotonic() - began_s
        ask()
        return taken / over_s


@pytest.mark.parametrize(
    ("dataset", "step_s"),
    [(Samples(sleeps_s=0.02), 0.0), (Samples(sleeps_s=0.02), 0.03), (Samples(computes_s=0.01), 0.0)],
    ids=["waits", "waits, and the trainer works", "computes"],
)
def test_with_so_many_workers_it_is_as_was_said(daemon, dataset, step_s):
    daemon.start()
    told = []

    def ask() -> None:
        done = daemon.command("advise", "now", "--workers", str(ASKED), "--json")
        (stream,) = json.loads(done.stdout)["streams"]
        told.append({each["value"]: each for each in stream["answers"] if each["what"] == "workers"})

    now = trained("now", dataset, 2, step_s, ask)
    (answers,) = told
    assert answers[2]["is_now"]
    assert answers[2]["batches_per_s"] == pytest.approx(now, rel=0.2)
    then = trained("then", dataset, ASKED, step_s)
    assert 0.9 * answers[ASKED]["low"] <= then <= 1.1 * answers[ASKED]["high"]
