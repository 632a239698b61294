"""When a process of a chaos run has died."""

from __future__ import annotations

import os
import signal

from benchmarks.chaos.processes import is_dead, is_ending


def test_a_corpse_has_ended_and_so_has_one_that_is_gone():
    assert not is_ending(os.getpid())
    assert not is_dead(os.getpid())
    pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], {})
    assert not is_ending(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert is_ending(pid)
    assert is_dead(pid)
    os.waitpid(pid, 0)
    assert is_ending(pid)
    assert is_dead(pid)
