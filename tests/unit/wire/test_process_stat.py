"""Who a pid is."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from prefetchd.wire.process_stat import process_stat


def test_it_tells_state_and_start_of_a_process():
    found = process_stat(os.getpid())
    assert found.state in "RS"
    since_boot_s = psutil.Process().create_time() - psutil.boot_time()
    assert abs(found.start_ticks / os.sysconf("SC_CLK_TCK") - since_boot_s) < 2


def test_a_corpse_is_one():
    corpse = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, corpse.pid, os.WEXITED | os.WNOWAIT)
    assert process_stat(corpse.pid).state == "Z"
    corpse.wait()
    assert process_stat(corpse.pid) is None


def test_a_name_may_be_anything():
    code = "open('/proc/self/comm', 'w').write('a) R 1 ('); print(flush=True); input()"
    odd = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    odd.stdout.readline()
    assert process_stat(odd.pid).start_ticks > process_stat(os.getpid()).start_ticks
    odd.communicate()
