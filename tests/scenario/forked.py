"""A function in a forked child, for what takes a process of its own but no interpreter of its own."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Callable

from prefetchd.workers.process_setup import die_with_parent


def forked(work: Callable[[], object]) -> tuple[int, int]:
    """Runs work() in a child: its pid, and a pipe that has what work() returned, as text, or the traceback of what it
    raised. The child exits with 0 or 1."""
    reading, writing = os.pipe()
    parent = os.getpid()
    with warnings.catch_warnings():
        # The timeout's thread is no reason not to: the child only does what `work` does.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    # A test that fails does not let its children go on.
    die_with_parent(parent)
    code = 1
    try:
        said, code = str(work()), 0
    except BaseException:
        said = traceback.format_exc()
    try:
        os.write(writing, said.encode())
    finally:
        os._exit(code)


def told_by(child: tuple[int, int]) -> str:
    """What the child's work() returned, once it has. Fails with the child's traceback when it raised."""
    pid, reading = child
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, said
    return said
