"""Writes a trace in the Trace Event Format, which chrome://tracing and Perfetto open. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from prefetchd.wire.messages import (
    CHECK_FILES,
    DIGEST,
    FILL_ROWS,
    FILL_WHOLE,
    MEASURE,
    TRACED_REMOTE,
    TRACED_WAIT,
    Ints,
)

KINDS = {MEASURE: "measure", FILL_ROWS: "rows", FILL_WHOLE: "batch", DIGEST: "digest", CHECK_FILES: "check files"}
TRAINERS = 1
FIRST_STREAM = 1000
"""The first number of a stream's process in the picture, where the trainers are one process and each stream is
another."""


def trace_json(
    events: Iterable[Ints], names: Mapping[int, str], dropped: int, changes: Iterable[tuple[str, Ints, str]] = ()
) -> dict[str, Any]:
    """Returns the whole file. Times in it are microseconds since the first event. `changes` are TraceEvents.tuned
    and .resized, each with what there is another number of ("workers", "batches"), and with its reason."""
    rows = sorted(events, key=lambda each: each[8])
    changed = sorted(changes, key=lambda each: each[1])
    first_us = min([*(each[8] for each in rows[:1]), *(row[0] for _, row, _ in changed[:1])], default=0)
    found: list[dict[str, Any]] = []
    tracks: dict[tuple[int, int], str] = {}
    ends: dict[tuple[int, int], int] = {}
    for kind, stream, who, epoch, step, first, end, task, began_us, duration_us in rows:
        name = names.get(stream, str(stream))
        if kind == TRACED_WAIT:
            track, text, about = (TRAINERS, who), f"waits for {name} {epoch}:{step}", {"stream": name}
            tracks[track] = f"trainer pid {who}"
        elif kind == TRACED_REMOTE:
            track, text = (FIRST_STREAM + stream, who), f"batch {epoch}:{step}, elsewhere"
            about = {"made in": f"{first / 1000:.1f} ms"}
            tracks[track] = f"remote worker {who}"
        else:
            track, text = (FIRST_STREAM + stream, who), f"{KINDS.get(task, 'task')} {epoch}:{step}"
            about = {"rows": f"{first} to {end}"} if task == FILL_ROWS else {}
            tracks[track] = f"worker {who}"
        # Ends are when the daemon heard of it, so that two of one worker may seem to overlap by some microseconds.
        begin_us = max(began_us, ends.get(track, began_us))
        ends[track] = max(begin_us, began_us + duration_us)
        found.append(
            {
                "name": text,
                "cat": "wait" if kind == TRACED_WAIT else "fill",
                "ph": "X",
                "ts": begin_us - first_us,
                "dur": ends[track] - begin_us,
                "pid": track[0],
                "tid": track[1],
                "args": {"epoch": epoch, "step": step, **about},
            }
        )
    for what, (at_us, stream, before, after), why in changed:
        tracks[FIRST_STREAM + stream, 0] = "tuned"
        found.append(
            {
                "name": f"{before} to {after} {what}",
                "cat": "tuned",
                "ph": "i",
                "s": "p",
                "ts": at_us - first_us,
                "pid": FIRST_STREAM + stream,
                "tid": 0,
                "args": {"why": why},
            }
        )
    named = [_name("process_name", pid, 0, _process(pid, names)) for pid in sorted({pid for pid, _ in tracks})]
    named += [_name("thread_name", pid, tid, text) for (pid, tid), text in sorted(tracks.items())]
    return {"traceEvents": [*named, *found], "displayTimeUnit": "ms", "otherData": {"dropped_events": dropped}}


def _process(pid: int, names: Mapping[int, str]) -> str:
    return "trainers" if pid == TRAINERS else f"stream {names.get(pid - FIRST_STREAM, '')}"


def _name(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
