"""What the run of PyTorch's own tests says of its outcomes. The tests themselves are run by hand."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.compatibility.torch_suite import left_out, outcomes, serving
from tests.compatibility.torch_suite.outcomes import Outcome, Summary
from tests.compatibility.torch_suite.suite import Suite

TESTS = """
import os, time, unittest

class TestFirst(unittest.TestCase):
    def test_passes(self):
        pass

    def test_fails(self):
        print("some output")
        self.assertEqual(1, 2)

    def test_skips(self):
        self.skipTest("nothing to do")

    def test_hangs(self):
        time.sleep(600)

    def test_does_not_end_in_order(self):
        import atexit
        atexit.register(os._exit, 3)

    def test_leaves_a_process(self):
        if os.fork() == 0:
            time.sleep(600)

    def test_is_swapped(self):
        from torch.utils.data import DataLoader
        self.assertEqual(DataLoader.__name__, "PrefetchLoader")

class TestSecond(TestFirst):
    pass
"""


def summary(*words: str) -> Summary:
    return Summary(tuple(Outcome(f"Test.{place}", word, "why\nlast") for place, word in enumerate(words)))


def test_the_share_is_of_those_that_say_something():
    found = summary(outcomes.PASSED, outcomes.FAILED, outcomes.LEFT_OUT, outcomes.SKIPPED, outcomes.FAILED_BOTH_WAYS)
    assert found.share == 0.5
    assert not found.reaches


def test_nothing_that_ran_reaches_nothing():
    assert not summary(outcomes.LEFT_OUT).reaches


@pytest.mark.parametrize(("bad", "reaches"), [(2, True), (3, False)])
def test_the_goal(bad: int, reaches: bool):
    assert summary(*[outcomes.PASSED] * (100 - bad), *[outcomes.TIMED_OUT] * bad).reaches is reaches


def test_the_report_has_each_test_that_did_not_pass_and_why():
    found = list(outcomes.lines(summary(outcomes.PASSED, outcomes.FAILED, outcomes.LEFT_OUT, outcomes.LEFT_OUT)))
    assert found[:3] == ["failed: Test.1", "    why", "    last"]
    assert found[3:6] == ["left out: last", "    Test.2", "    Test.3"]
    assert found[6].startswith("1 of 2 passed (50.0%)")


def test_what_is_left_out_is_left_out_of_the_class_that_inherits_it_too():
    why = left_out.reason("TestDataLoader.test_worker_seed")
    assert why
    assert left_out.reason("TestDataLoaderPersistentWorkers.test_worker_seed") == why
    assert not left_out.reason("TestDataLoaderPersistentWorkers.test_len")
    assert not left_out.reason("TestOther.test_worker_seed")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some_tests.py"
    path.write_text(TESTS, "utf-8")
    return path


def test_each_test_has_its_own_outcome_and_leaves_nothing(file: Path):
    with Suite(file, swapped=False, limit_s=5) as suite:
        assert len(suite.names) == 14
        words = {name: suite.run(f"TestSecond.test_{name}") for name in ("passes", "fails", "skips", "hangs")}
        assert {name: each.word for name, each in words.items()} == {
            "passes": outcomes.PASSED,
            "fails": outcomes.FAILED,
            "skips": outcomes.SKIPPED,
            "hangs": outcomes.TIMED_OUT,
        }
        assert "AssertionError: 1 != 2" in words["fails"].text
        assert "some output" in words["fails"].text
        assert words["skips"].text == "nothing to do"
        out_of_order = suite.run("TestFirst.test_does_not_end_in_order")
        assert out_of_order.word == outcomes.FAILED
        assert "its process ended with code 3, after it had passed" in out_of_order.text
        assert suite.run("TestFirst.test_leaves_a_process").word == outcomes.PASSED


@pytest.mark.parametrize("swapped", [True, False])
def test_the_class_is_swapped_or_not(file: Path, swapped: bool):
    with Suite(file, swapped=swapped, limit_s=60) as suite:
        assert (suite.run("TestFirst.test_is_swapped").word == outcomes.PASSED) is swapped


def test_what_is_left_in_a_session_is_ended():
    with subprocess.Popen(["sh", "-c", "sleep 600 &"], stdout=subprocess.PIPE, start_new_session=True) as shell:
        shell.wait()
        serving.end_session(shell.pid)
        assert shell.stdout is not None
        assert shell.stdout.read() == b"", "it ends when nobody has it any more"
