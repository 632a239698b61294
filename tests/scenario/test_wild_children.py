"""What a worker, planner or zygote says that none of them would say costs its own stream at most."""

from __future__ import annotations

import json

import pytest

from tests.scenario.fuzzed_trainer import FuzzedTrainer
from tests.scenario.wild_children import WildVoice, WildZygote, take_what_comes, wild_planners, wild_workers

MAKERS = {
    "workers": wild_workers,
    "planners": wild_planners,
    "zygotes": lambda seed: {"dataset": WildZygote(WildVoice(seed, 1)), "num_workers": 1},
}
ROUNDS = {"workers": 6, "planners": 6, "zygotes": 4}
MOST_ROUNDS = 30


def log_of(daemon) -> list[dict]:
    return [json.loads(line) for line in daemon.paths.log.read_text().splitlines()]


def was_wild(daemon) -> bool:
    """Whether something was said for which its process was killed: that is chance."""
    return any("killed by the daemon" in str(each) or each["event"] == "worker" for each in log_of(daemon))


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
