"""Which files of ours have code that runs while somebody says so, in every process that begins here or is forked.

Each process has a profile function (sys.setprofile) that looks at one shared byte, the window: 0 is nothing, another
number is a stretch of time that the test has begun. Run as a program, this is `prefetchd` with such a function.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections import defaultdict
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]
TOPS = (f"{ROOT}/prefetchd/", f"{ROOT}/client/")


class CallTracer:
    """Writes (window, file) at the first call of the file's code in a window, into a file of the process's own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        fd = os.open(directory / "window", os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, mmap.PAGESIZE)
        self._window = mmap.mmap(fd, mmap.PAGESIZE)
        os.close(fd)
        self._timers: FrameType | None = None
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._seen: set[tuple[int, str]] = set()
        self._fd = os.open(self._directory / f"calls.{self._pid}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def set_window(self, window: int) -> None:
        """Begins a window in all processes, or with 0 ends it."""
        self._window[0] = window

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if self._timers is not None:
            if event == "return" and frame is self._timers:
                self._timers = None
            return
        if event != "call" or not (window := self._window[0]):
            return
        file = frame.f_code.co_filename
        if not file.startswith(TOPS):
            return
        if (window, file) not in self._seen or os.getpid() != self._pid:
            if os.getpid() != self._pid:
                self._begin()
            self._seen.add((window, file))
            os.write(self._fd, f"{window} {file}\n".encode())
        # What the daemon does every so often, such as its snapshots, belongs to no batch.
        if frame.f_code.co_name == "_run_timers":
            self._timers = frame


def files_by_window(directory: Path) -> dict[int, set[str]]:
    """Window to files, as paths below the root of the project."""
    found: dict[int, set[str]] = defaultdict(set)
    for calls in directory.glob("calls.*"):
        for line in calls.read_text().splitlines():
            window, _, file = line.partition(" ")
            found[int(window)].add(Path(file).relative_to(ROOT).as_posix())
    return found


if __name__ == "__main__":
    sys.setprofile(CallTracer(Path(sys.argv.pop(1))))
    from prefetchd.cli.main import main

    main()
