"""Whatever a crowd of peers says, the daemon serves its trainer, and does not grow."""

from __future__ import annotations

import psutil
import pytest

from tests.scenario.fuzzed_trainer import FuzzedTrainer
from tests.scenario.fuzzing import Fuzz
from tests.scenario.watching import open_fds, until

MESSAGES = 15_000


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_trainer_does_not_notice_what_a_crowd_says(daemon):
    daemon.start()
    with FuzzedTrainer() as trainer:
        trainer.until_it_has_taken(20)
        pid = daemon.pid
        before = open_fds(pid)
        fuzz = Fuzz(daemon.paths, 1, trainer.hello())
        try:
            fuzz.send(MESSAGES // 3)
            first_bytes = psutil.Process(pid).memory_full_info().uss
            fuzz.send(MESSAGES - MESSAGES // 3)
        finally:
            fuzz.close()
        trainer.until_it_has_taken(trainer.taken + 20)
        assert not trainer.wrong
        assert daemon.pid == pid, "the daemon died: " + daemon.command("logs").stdout
        assert psutil.Process(pid).memory_full_info().uss < 1.1 * first_bytes
        until(lambda: open_fds(pid) <= before, f"the daemon has its {before} descriptors again")
