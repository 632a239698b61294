"""Whatever a crowd of peers says, the daemon serves its trainer, and does not grow."""

from __future__ import annotations

import psutil
import pytest

from tests.scenario.fuzzed_trainer import STREAM, FuzzedTrainer
from tests.scenario.fuzzing import Fuzz
from tests.scenario.waiting import open_fds, report_when, stream_when, until

MESSAGES = 15_000
FDS_A_WORKER = 3
"""Its socket, its note, the pipe of what it prints."""


def is_complete(stream) -> bool:
    return stream["program_kept"] and [each["stage"] for each in stream["workers"]] == ["ready"]


def descriptors(daemon) -> int:
    """Those that the daemon has, but for its workers': the crowd may ask for more of these on the trainer's stream."""
    report = report_when(daemon, lambda report: report.snapshot, "it tells")
    return open_fds(daemon.pid) - FDS_A_WORKER * report.snapshot["workers"]["running"]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_trainer_does_not_notice_what_a_crowd_says(daemon):
    daemon.start()
    with FuzzedTrainer() as trainer:
        trainer.until_it_has_taken(20)
        pid = daemon.pid
        stream_when(daemon, STREAM, is_complete, "it has all that it will ever have")
        before = descriptors(daemon)
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
        until(lambda: descriptors(daemon) <= before, f"the daemon has its {before} descriptors again")
