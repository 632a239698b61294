"""Looks at a child process from outside, without waiting for it."""

from __future__ import annotations

from collections.abc import Callable

from prefetchd.processes.stack_dumps import ask_for_stacks, process_state, read_stacks
from prefetchd.supervisor.backend import Look, Watcher
from prefetchd.supervisor.worker_status_file import WorkerStatusFile

LOOK_AGAIN_S = 0.05
LONGEST_LOOK_S = 1.0


def look(watcher: Watcher, pid: int, pidfd: int, note: WorkerStatusFile, tell: Callable[[Look], None]) -> None:
    """Calls tell(Look) in a later turn: once the stacks are written, or after LONGEST_LOOK_S without. `note` may be
    closed meanwhile."""
    state = process_state(pid)
    # A stopped process would write its stacks only when it goes on, wherever it is by then.
    asked = state not in ("T", "t", "Z", "") and ask_for_stacks(pid, pidfd, note.fd)
    deadline_s = watcher.now_s() + LONGEST_LOOK_S
    before = ""

    def again() -> None:
        nonlocal before
        stacks = read_stacks(note.fd) if note.fd >= 0 else ""
        # Nothing tells the end of a dump but that it grows no more.
        if asked and watcher.now_s() < deadline_s and (not stacks or stacks != before):
            before = stacks
            watcher.call_later(LOOK_AGAIN_S, again)
        else:
            tell(Look(pid, state, stacks if asked else ""))

    watcher.call_later(LOOK_AGAIN_S if asked else 0.0, again)
