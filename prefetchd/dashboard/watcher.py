"""Looks at one daemon once a second, and remembers an hour of it. It reads the status segment and the history file, and
asks the daemon for a trace while a page shows one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from prefetchd import __version__
from prefetchd.dashboard.document import brief, document
from prefetchd.dashboard.lanes import Lanes
from prefetchd.dashboard.past import history_path, read_past
from prefetchd.dashboard.series import Series
from prefetchd.dashboard.usage import Usage
from prefetchd.status.points import StreamPoints
from prefetchd.status.snapshot import read_report
from prefetchd.status.status_object import status_object
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.messages import TraceEvents
from prefetchd.wire.runtime_paths import RuntimePaths

LOOK_EVERY_S = 1.0
LOOKED_AT_S = 5.0
"""Seconds after a page's last request in which a trace goes on."""
MOST_ENDED = 64
"""Ended streams to remember."""
ABSENT: dict[str, Any] = {"state": "absent", "health": "absent", "heartbeat_age_s": None, "problems": []}


class TraceSource(Protocol):
    """A trace that is under way."""

    def hear(self) -> TraceEvents | None:
        """Return the next events, None at the end. Blocks. Raises OSError, or an error of the caller's choice."""


OpenTrace = Callable[[], AbstractContextManager[TraceSource]]
"""Begins a trace of some seconds. Raises when no daemon answers."""


class Watcher:
    """Keeps what the page shows. Its methods may be called from any thread."""

    def __init__(self, paths: RuntimePaths, open_trace: OpenTrace) -> None:
        self._paths = paths
        self._open_trace = open_trace
        self._lock = threading.Lock()
        self._status: dict[str, Any] = ABSENT
        self._error = ""
        self._series: dict[str, Series] = {}
        self._points: dict[str, StreamPoints] = {}
        self._last: dict[str, dict[str, Any]] = {}
        self._ended: dict[str, dict[str, Any]] = {}
        self._usage = Usage()
        self._processes: list[dict[str, Any]] = []
        self._lanes = Lanes()
        self._asked_at_s = -LOOKED_AT_S
        self._ends = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Look once, read the history that there is, and go on looking until stop()."""
        self.look()
        self._read_history()
        for target in (self._look_on, self._trace_on):
            thread = threading.Thread(target=target, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        """Stop looking. A trace that is under way is left to the end of the process."""
        self._ends.set()

    def look(self) -> None:
        """Look once. Blocks for up to a second while a daemon is starting."""
        try:
            status, error = status_object(read_report(self._paths)), ""
            for each in status.get("streams", []):
                brief(each)
        except KeyError as missing:
            status, error = ABSENT, f"the daemon does not say {missing}: it is of another version, not {__version__}"
        except (ProtocolError, OSError) as failure:
            status, error = ABSENT, str(failure)
        processes = self._usage.look(status) if status["state"] in ("running", "hanging") else []
        with self._lock:
            self._status, self._error, self._processes = status, error, processes
            if status["state"] == "running":
                self._note(status)

    def document(self, wanted: str) -> dict[str, Any]:
        """Return the document of the page, with details of the stream `wanted`, or of the one whose trainer waits most
        when there is no such stream."""
        self._asked_at_s = time.monotonic()
        with self._lock:
            status = self._status
            streams = {each["name"]: each for each in status.get("streams", [])}
            name = wanted if wanted in streams or wanted in self._ended else _worst(streams)
            details = {}
            if name:
                details[name] = {
                    "status": streams.get(name) or self._ended[name],
                    "ended": name not in streams,
                    "history": self._series[name].rows() if name in self._series else [],
                    "lanes": self._lanes.of(name, time.monotonic()) if name in streams else [],
                }
            return document(
                status,
                details,
                socket=str(self._paths.socket),
                made_unix_s=time.time(),
                error=self._error,
                processes=self._processes,
                ended=list(self._ended),
            )

    def _note(self, status: dict[str, Any]) -> None:
        streams = {each["name"]: each for each in status["streams"]}
        for name in [name for name in self._last if name not in streams]:
            self._end(name, self._last[name])
            self._points.pop(name, None)
        for name, stream in streams.items():
            self._ended.pop(name, None)
            point = self._points.setdefault(name, StreamPoints()).point(
                stream, status["taken_unix_s"], status["daemon"]["up_s"]
            )
            self._series.setdefault(name, Series()).add(point)
        self._last = streams
        self._lanes.forget(set(streams))

    def _end(self, name: str, stream: dict[str, Any]) -> None:
        self._ended[name] = stream
        while len(self._ended) > MOST_ENDED:
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._series.pop(oldest, None)

    def _read_history(self) -> None:
        points, _ = read_past(history_path(self._status, self._paths))
        with self._lock:
            # The look before this has at most one point of each stream.
            self._series = {**self._series, **points}

    def _look_on(self) -> None:
        while not self._ends.wait(LOOK_EVERY_S):
            self.look()

    def _trace_on(self) -> None:
        while not self._ends.wait(LOOK_EVERY_S):
            if self._wants_trace():
                try:
                    with self._open_trace() as trace:
                        while self._wants_trace() and (events := trace.hear()) is not None:
                            with self._lock:
                                self._lanes.add(events)
                except Exception:
                    # The status says how the daemon is, and the page lives without its lanes.
                    continue

    def _wants_trace(self) -> bool:
        is_looked_at = time.monotonic() - self._asked_at_s < LOOKED_AT_S
        return is_looked_at and self._status["state"] == "running" and bool(self._status.get("streams"))


def _worst(streams: dict[str, dict[str, Any]]) -> str:
    if not streams:
        return ""
    return max(streams, key=lambda name: streams[name]["verdict"]["stalled_share"] or 0.0)
