"""A script that makes all its loaders, and then waits for one of them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from prefetchd_client import PrefetchLoader

from tests.scenario.datasets import Numbers
from tests.scenario.gated_datasets import Gated
from tests.scenario.waiting import report_when, stream_when

BATCH = 16


def test_what_is_waited_for_is_made_before_what_another_loader_may_want(daemon, tmp_path):
    """Found with a loader for validation: the first batches of the training took twice as long as DataLoader's."""
    daemon.start()
    gate = tmp_path / "gate"
    with (
        PrefetchLoader(Gated(gate, 4 * BATCH), BATCH, num_workers=1, stream="train") as train,
        PrefetchLoader(Numbers(4 * BATCH), BATCH, num_workers=1, buffer=4, stream="validate") as validate,
        ThreadPoolExecutor(1) as pool,
    ):
        batches = iter(train)
        first = pool.submit(next, batches)
        try:
            report = report_when(daemon, _train_waits, "a next() waits, and a worker is at the gate")
            waiting = next(each for each in report.snapshot["streams"] if each["name"] == "validate")
            assert not waiting["workers"]
            assert not waiting["produced_batches"]
        finally:
            gate.touch()
        first.result()
        assert len(list(batches)) == 3
        stream_when(
            daemon,
            "validate",
            lambda stream: stream["ring"] and stream["ring"]["ready"] == 4,
            "it is filled afterwards",
        )
        assert len(list(validate)) == 4


def _is_full(stream) -> bool:
    return stream["ring"] is not None and stream["ring"]["ready"] == 4


def _train_waits(report) -> bool:
    streams = {each["name"]: each for each in report.snapshot["streams"]}
    if "train" not in streams or "validate" not in streams or streams["validate"]["stage"] != "running":
        return False
    train = streams["train"]
    return any(each["busy"] for each in train["workers"]) and any(each.get("waiting_s") for each in train["consumers"])
