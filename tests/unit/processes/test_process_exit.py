"""How processes end: the words are for people, the kinds decide."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from prefetchd.processes.process_exit import (
    CLEAN,
    FORSAKEN,
    KILLED,
    MAX_STATUS,
    MOST_DEATHS,
    MOST_KILLS,
    ORPHANED,
    UNEXPLAINED,
    ProcessExit,
    describe_exit,
    is_hopeless,
)
from prefetchd.wire.errors import ProtocolError

SEGFAULT = ProcessExit.killed(signal.SIGSEGV)
REFUSED = ProcessExit.refused(ProtocolError("nonsense"))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (CLEAN, "exited with 0"),
        (ProcessExit.exited(3), "exited with 3"),
        (KILLED, "killed by SIGKILL"),
        (ProcessExit.killed(signal.SIGRTMIN + 3), f"killed by signal {signal.SIGRTMIN + 3}"),
        (UNEXPLAINED, "died"),
        (ORPHANED, "its zygote died"),
        (REFUSED, "killed by the daemon: nonsense"),
        (FORSAKEN, "forsaken"),
    ],
    ids=str,
)
def test_its_words(how, words):
    assert str(how) == words


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        (CLEAN, "exited with 0"),
        (KILLED, "was killed by SIGKILL"),
        (REFUSED, "was killed by the daemon: nonsense"),
        (UNEXPLAINED, "died"),
        (ORPHANED, "its zygote died"),
    ],
    ids=str,
)
def test_its_words_after_the_name_of_a_process(how, sentence):
    assert describe_exit(how) == sentence


@pytest.mark.parametrize(
    ("act", "how"),
    [("os._exit(3)", ProcessExit.exited(3)), ("os.kill(os.getpid(), 9)", KILLED), ("os.abort()", None)],
)
def test_a_wait_status_and_a_returncode_say_the_same(act, how):
    process = subprocess.Popen([sys.executable, "-S", "-c", f"import os; {act}"])
    _, status = os.waitpid(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert ProcessExit.from_status(status) == ProcessExit.from_returncode(process.returncode)
    assert ProcessExit.from_status(status) == (how or ProcessExit.killed(signal.SIGABRT))


@pytest.mark.parametrize("status", [-1, MAX_STATUS + 1, 2**63])
def test_a_status_that_is_none_is_refused(status):
    with pytest.raises(ProtocolError, match="status"):
        ProcessExit.from_status(status)


@pytest.mark.parametrize("how", [KILLED, UNEXPLAINED], ids=str)
def test_one_that_others_may_have_killed_is_tried_more_often(how):
    assert not is_hopeless(MOST_KILLS, how)
    assert is_hopeless(MOST_KILLS + 1, how)


@pytest.mark.parametrize("how", [CLEAN, SEGFAULT, REFUSED, ORPHANED], ids=str)
def test_one_that_ends_of_itself_is_given_up_sooner(how):
    assert not is_hopeless(MOST_DEATHS, how)
    assert is_hopeless(MOST_DEATHS + 1, how)


def test_only_deaths_after_its_zygote_follow_from_that():
    assert [each for each in (CLEAN, KILLED, SEGFAULT, REFUSED, UNEXPLAINED, ORPHANED) if each.follows_from_zygote] == [
        UNEXPLAINED,
        ORPHANED,
    ]


def test_one_that_exited_was_not_killed_for_memory():
    assert not ProcessExit.exited(137).may_be_for_memory
    assert all(each.may_be_for_memory for each in (KILLED, UNEXPLAINED, ORPHANED, REFUSED))


def test_a_reason_with_the_words_of_another_kind_does_not_make_it_that_kind():
    how = ProcessExit.refused("exited with 0")
    assert how.may_be_for_memory
    assert how != CLEAN
