"""Run programs in forks of this process, so that none finds what another has left in globals or in the environment."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

from tests.fuzz.oracle import difference
from tests.fuzz.programs import Program, run

WITHIN_S = 40.0


def check(what: Program) -> None:
    """Run the program twice with DataLoader and, if that can do it, twice with PrefetchLoader, as two runs of a script.
    Raise AssertionError, with the program, if an outcome is not DataLoader's."""
    theirs, again = (_forked(what, DataLoader, ours=False) for _ in range(2))
    if isinstance(theirs, str) or isinstance(again, str):
        return
    ours = [_forked(what, PrefetchLoader, ours=True) for _ in range(2)]
    for number, mine in enumerate(ours):
        found = mine if isinstance(mine, str) else difference(what, theirs, again, mine)
        assert not found, f"{what!r}\n  run {number + 1}: {found}"
    assert not what.is_random or ours[0] == ours[1], f"{what!r}\n  two runs differ: {ours[0]}, {ours[1]}"


def _forked(what: Program, kind: Any, *, ours: bool) -> list[Any] | str:
    """Return the program's outcome, or how it has ended without one."""
    into, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(into)
        _in_child(what, kind, out, ours=ours)
    os.close(out)
    try:
        found = _received(into)
    finally:
        os.close(into)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return found


def _in_child(what: Program, kind: Any, out: int, *, ours: bool) -> None:
    try:
        os.setsid()
        warnings.simplefilter("ignore")
        # Each run has the same directory: to a fingerprint another one would be another program.
        directory = Path(tempfile.gettempdir(), f"prefetchd-fuzz-{os.getppid()}-{what.mark}")
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        try:
            found: Any = run(what, kind, directory, ours=ours)
        finally:
            shutil.rmtree(directory, ignore_errors=True)
    except BaseException:
        found = f"the program ended: {traceback.format_exc()}"
    with os.fdopen(out, "wb") as file:
        pickle.dump(found, file)
    sys.stdout.flush()
    sys.stderr.flush()
    # As at the end of a script: loaders are closed, and say goodbye.
    import atexit

    atexit._run_exitfuncs()
    os._exit(0)


def _received(fd: int) -> list[Any] | str:
    data = b""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while poll.poll(WITHIN_S * 1000):
        chunk = os.read(fd, 1 << 20)
        if not chunk:
            return pickle.loads(data) if data else "the process has died"
        data += chunk
    return f"no end within {WITHIN_S:.0f} s"
