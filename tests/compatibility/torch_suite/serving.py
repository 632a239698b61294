"""The process that has imported the file of tests, and runs each test of it in a fork of its own.

Reads names from its standard input, one a line, and answers each with a line of JSON on the file descriptor that it was
given: first of all with every name that there is.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import os
import select
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import psutil

from tests.compatibility.torch_suite import outcomes

LAST_WORDS_S = 5.0
"""How long a test that has timed out may take to say where it is."""

OUTPUT_LINES = 60

TRACKER = "multiprocessing.resource_tracker"
"""Ends by itself when the processes that use it are gone, and unlinks their semaphores."""


def main(file: Path, answers: IO[str], limit_s: float) -> None:
    # Whoever ends this process ends the test that runs too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    module = imported(file)
    tests = dict(of_module(module))
    # What has been imported lives as long as the process: no fork's gc has to go through it, least of all at its end.
    gc.collect()
    gc.freeze()
    _answer(answers, list(tests))
    for line in sys.stdin:
        _answer(answers, run_apart(tests[line.strip()], limit_s))


def imported(file: Path) -> ModuleType:
    """By its name, as processes that its tests spawn will find it."""
    sys.path.insert(0, str(file.parent))
    return importlib.import_module(file.stem)


def of_module(module: ModuleType) -> list[tuple[str, unittest.TestCase]]:
    """All tests of the classes that the module has, in its order."""
    found = []
    for kind in vars(module).values():
        if inspect.isclass(kind) and issubclass(kind, unittest.TestCase) and kind.__module__ == module.__name__:
            for name in unittest.defaultTestLoader.getTestCaseNames(kind):
                found.append((f"{kind.__name__}.{name}", kind(name)))
    return found


def run_apart(test: unittest.TestCase, limit_s: float) -> dict[str, Any]:
    """In a fork, which ends as a program does. Whatever it has started in its session is ended with it."""
    began_s = time.monotonic()
    with tempfile.TemporaryFile("w+") as result, tempfile.TemporaryFile("w+") as output:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            json.dump(run(test), result)
            result.flush()
            sys.exit()
        pidfd = os.pidfd_open(pid)
        try:
            in_time = bool(select.select([pidfd], [], [], limit_s)[0])
            if not in_time:
                # torch's file has faulthandler print every thread's stack at this signal.
                os.kill(pid, signal.SIGUSR1)
                select.select([pidfd], [], [], LAST_WORDS_S)
        finally:
            os.close(pidfd)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            end_session(pid)
        result.seek(0)
        output.seek(0)
        found = judged(result.read(), output.read(), in_time=in_time, status=status)
        return found | {"seconds": round(time.monotonic() - began_s, 2)}


def end_session(session: int) -> None:
    """Kills what a test has left; but what multiprocessing has to tidy up after a process that was killed does so."""
    left = [each for each in psutil.process_iter() if _session(each.pid) == session]
    tidying = [each for each in left if TRACKER in " ".join(_command(each))]
    for each in left:
        if each not in tidying:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    _, stuck = psutil.wait_procs(tidying, LAST_WORDS_S)
    for each in stuck:
        each.kill()


def _session(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.getsid(pid)
    return -1


def _command(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def run(test: unittest.TestCase) -> dict[str, str]:
    """What came of it, in this very process."""
    found = unittest.TestResult()
    test.run(found)
    if found.errors or found.failures:
        return {"word": outcomes.FAILED, "text": "\n".join(text for _, text in found.errors + found.failures)}
    if found.skipped:
        return {"word": outcomes.SKIPPED, "text": found.skipped[0][1]}
    return {"word": outcomes.PASSED, "text": ""}


def judged(result: str, output: str, *, in_time: bool, status: int) -> dict[str, str]:
    """A test that passed and whose process then did not end, or not in order, has failed."""
    said = json.loads(result) if result else {"word": outcomes.FAILED, "text": ""}
    if in_time and status == 0 and result:
        return said if said["word"] != outcomes.FAILED else said | {"text": said["text"] + _last(output)}
    how = f"ended with code {os.waitstatus_to_exitcode(status)}" if in_time else "did not end in time"
    after = f", after it had {said['word']}" if result else ""
    word = outcomes.FAILED if in_time else outcomes.TIMED_OUT
    return {"word": word, "text": f"{said['text']}{_last(output)}its process {how}{after}"}


def _last(output: str) -> str:
    lines = output.splitlines()[-OUTPUT_LINES:]
    return "".join(f"  | {line}\n" for line in lines)


def _answer(answers: IO[str], what: Any) -> None:
    print(json.dumps(what), file=answers, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), os.fdopen(int(sys.argv[2]), "w"), float(sys.argv[3]))
