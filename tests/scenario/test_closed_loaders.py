"""Loaders that are closed while something else goes on."""

from __future__ import annotations

import time
from pathlib import Path

from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Numbers
from tests.scenario.test_reruns import BATCH, SLOTS, TAKEN, is_left, run
from tests.scenario.waiting import stream_when, until

ROOM = 400
"""Batches, of which making takes some seconds."""


class Counted:
    """Samples of which each leaves a byte in the file `calls`."""

    def __init__(self, calls: Path) -> None:
        self.calls = calls

    def __len__(self) -> int:
        return BATCH * ROOM

    def __getitem__(self, index: int) -> int:
        with self.calls.open("ab") as calls:
            calls.write(b".")
        time.sleep(0.005)
        return index


def test_nothing_more_is_made_for_a_closed_loader_while_its_process_goes_on_with_another(daemon, tmp_path):
    """Found as 800 more samples in the 3 s after a validation's end."""
    daemon.start()
    calls = tmp_path / "calls"
    with PrefetchLoader(Numbers(40_000), BATCH, num_workers=1, buffer=8, stream="train") as train:
        batches = iter(train)
        next(batches)
        with PrefetchLoader(Counted(calls), BATCH, num_workers=2, buffer=ROOM, stream="validate") as validation:
            next(iter(validation))
        # As long as its workers live: then they are gone, as DataLoader's are.
        until(lambda: next(batches) and stream_when(daemon, "validate")["stage"] == "parked", "its processes end")
        left = stream_when(daemon, "validate")
        assert left["lingering"]
        assert left["ring"]["ready"] == left["produced_batches"] - 1, "what is ready stays"
        assert len(calls.read_bytes()) < BATCH * ROOM / 2


def test_what_an_ended_script_has_left_is_filled_also_beside_another_trainer(daemon, tmp_path):
    daemon.start()
    with PrefetchLoader(Numbers(400), BATCH, num_workers=1, buffer=8, stream="another") as another:
        next(iter(another))
        run(daemon, tmp_path / "calls", TAKEN)
        left = stream_when(daemon, "interactive:0", is_left, "both halves are ready")
        assert left["ring"]["ready"] == SLOTS
