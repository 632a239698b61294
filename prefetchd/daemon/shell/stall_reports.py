"""Reports waits that last, in words: what the engine knows of the cause, and what a look at a process adds to that."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable

from prefetchd.daemon.engine.commands import NOBODY, ZYGOTE, ReportStall
from prefetchd.daemon.engine.stream.blame import MAY_BE_A_LOCK, what_was_made
from prefetchd.processes.stack_dumps import gist, imported
from prefetchd.supervisor.backend import Backend, Look
from prefetchd.wire.messages import Message, WaitNamed
from prefetchd.wire.worker_status import IDLE, IMPORTING, SAMPLING, STARTING, WorkerStatus

IMPORTS_TAKE_TIME = "what that module's import does takes the time; import it in the script, and each worker has it"
TEXT_LIMIT_CHARACTERS = 4000
STACKS_LOGGED_CHARACTERS = 32_000

log = logging.getLogger("prefetchd")


class StallReports:
    """Carries out ReportStall. Nothing here blocks: a look at a process is answered later."""

    def __init__(self, backend: Backend, name_of: Callable[[int], str], send: Callable[[int, Message], None]) -> None:
        """`name_of(stream)` is the stream's name; `send(session, message)` drops the message if it cannot be sent."""
        self._backend = backend
        self._name_of = name_of
        self._send = send
        self._looking: dict[tuple[int, int], list[ReportStall]] = {}

    def name(self, wait: ReportStall) -> None:
        """Tells trainer and log the cause now, or once the suspect has been looked at."""
        if wait.suspect == NOBODY:
            self._tell(wait, wait.cause, [], "")
            return
        suspect = (wait.stream, wait.suspect)
        waits = self._looking.setdefault(suspect, [])
        waits.append(wait)
        if len(waits) == 1:
            self._backend.look_at(*suspect)

    def looked(self, stream: int, worker: int, look: Look) -> None:
        """Takes the backend's answer to look_at(), and tells the causes that waited for it."""
        waits = self._looking.pop((stream, worker), [])
        note = self._backend.note(worker)
        for wait in waits:
            cause = wait.cause
            if module := imported(look.stacks):
                cause = f"{cause}, at importing {module}" if cause else ""
                wait = dataclasses.replace(wait, knob=IMPORTS_TAKE_TIME)
            elif wait.forked and look.sleeps:
                wait = dataclasses.replace(wait, knob=f"{wait.knob}; {MAY_BE_A_LOCK}")
            if worker != ZYGOTE:
                who = "the planner" if note.phase == SAMPLING else f"worker {worker}"
                at_it = f"{who} (pid {look.pid}) {_at(note, wait)}"
                cause = f"{cause}; {at_it}" if cause else at_it
            self._tell(wait, cause + _state(look), gist(look.stacks), look.stacks)

    def _tell(self, wait: ReportStall, cause: str, frames: list[str], stacks: str) -> None:
        epoch, step = wait.position
        lines = [f"{cause}:", *(f"    {frame}" for frame in frames)] if frames else [cause]
        if wait.knob:
            lines.append(f"  {wait.knob}{'; `prefetchd logs` has the whole stack' if stacks else ''}")
        fields = {
            "stream": self._name_of(wait.stream),
            "session": wait.session,
            "epoch": epoch,
            "step": step,
            "waited_s": round(wait.waited_s, 1),
            "cause": cause,
        }
        if stacks:
            fields["stacks"] = stacks[:STACKS_LOGGED_CHARACTERS]
        log.warning("wait", extra={"fields": fields})
        self._send(wait.session, WaitNamed(wait.cursor, epoch, step, "\n".join(lines)[:TEXT_LIMIT_CHARACTERS]))


def _at(note: WorkerStatus, wait: ReportStall) -> str:
    for_s = max(0.0, time.monotonic() - note.since_ns / 1e9)
    if note.phase == STARTING:
        return f"is starting, for {for_s:.0f} s" if note.since_ns else "has yet to start"
    if note.phase == IMPORTING:
        return f"has been importing for {for_s:.0f} s"
    if note.phase == IDLE:
        return f"is between two tasks, for {for_s:.0f} s"
    if note.phase == SAMPLING:
        return f"has been running the sampler for {for_s:.0f} s"
    return f"has been at {what_was_made(note, wait.at or wait.position)} for {for_s:.0f} s"


def _state(look: Look) -> str:
    if look.state in ("T", "t"):
        return f". It is stopped (state {look.state}): `kill -CONT {look.pid}` lets it go on"
    if look.state == "D":
        return ". It waits in the kernel (state D), for a disk or a network file system"
    if not look.state:
        return ". It has no process by now"
    return "" if look.stacks else ". It does not show its stack"
