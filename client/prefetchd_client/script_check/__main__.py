"""This module is `python -m prefetchd_client.script_check`: it runs a script whose loaders are checked. People call
`prefetchd doctor --script`."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import os
import runpy
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch.utils.data
from torch.utils.data import DataLoader

from prefetchd.wire.runtime_paths import CONFIG_VARIABLE, METRICS_VARIABLE, SOCKET_PATH_LIMIT, SOCKET_VARIABLE
from prefetchd_client.caller_warnings import caller_frame
from prefetchd_client.script_check.loader_check import LoaderCheck, check_loader
from prefetchd_client.script_check.loader_kind import LoaderKind, kind_of
from prefetchd_client.script_check.report import LoaderFacts, LoaderReport, facts_of, report_on

UNEQUAL, NOTHING_SEEN = 3, 1
DIRECTORY, SOCKET = "prefetchd-check-", "d.sock"
MOST_AT_ONE_PLACE = 4
RUN_WITHIN_S = 60.0
"""The least seconds that a run may take: it is not cut short as soon as the script's seconds are over."""
# Streams of loaders that are closed give way to the next run, and to the script, at once.
START = ["run", "--detach", "--linger=0", "--linger-clean=0", "--idle-exit=900"]
STOP = ["stop", "--now"]


class _EnoughSeen(BaseException):
    """Ends the script. Not an Exception: the script must not catch it."""


class ScriptCheck:
    """Takes the place of DataLoader.__iter__ while the script runs. The first time that a line of the script iterates
    over a loader of its kind, that loader is run both ways; then, and later, the script gets its first batches."""

    def __init__(self, batches: int, seconds: float) -> None:
        self._batches = batches
        self._seconds = seconds
        self._until_s = 0.0
        self._begin = DataLoader.__iter__
        self._pid = os.getpid()
        self._seen: dict[str, dict[LoaderKind, _Seen]] = {}
        self._left_out: dict[str, set[LoaderKind]] = {}

    def run(self, script: str) -> str:
        """Runs the script as `python script` does. Returns what its own exit says has failed, or nothing. Raises what
        it raises."""
        check, self._until_s = self, time.monotonic() + self._seconds

        def checked_iter(loader: DataLoader[Any]) -> Iterator[Any]:
            return check._iterate(loader)

        DataLoader.__iter__ = checked_iter  # type: ignore[assignment, method-assign]
        try:
            runpy.run_path(script, run_name="__main__")
        except _EnoughSeen:
            pass
        except SystemExit as leaving:
            return _failure(leaving.code)
        finally:
            DataLoader.__iter__ = self._begin  # type: ignore[method-assign]
        return ""

    def reports(self) -> list[LoaderReport]:
        """Returns one report for each kind of loader that a line has iterated over, up to MOST_AT_ONE_PLACE."""
        found = []
        for place, kinds in self._seen.items():
            found += [report_on(each.facts, each.checked, each.steps_s, each.most) for each in kinds.values()]
            if left_out := self._left_out.get(place):
                found[-1].lines.append(f"not checked: {len(left_out)} more kinds of loaders at this line")
        return found

    def _iterate(self, loader: DataLoader[Any]) -> Iterator[Any]:
        # A dataset's own loader, in a worker or in a fork of ours.
        if os.getpid() != self._pid:
            return self._begin(loader)
        left_s = self._until_s - time.monotonic()
        if left_s < 0:
            raise _EnoughSeen
        frame = caller_frame(torch.utils.data.__path__[0])
        place = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
        kind, kinds = kind_of(loader), self._seen.setdefault(place, {})
        seen = kinds.get(kind)
        if seen is None and len(kinds) < MOST_AT_ONE_PLACE:
            print(f"prefetchd doctor: {place}: {self._batches} batches, both ways", file=sys.stderr, flush=True)
            checked = check_loader(loader, self._batches, self._begin, max(left_s, RUN_WITHIN_S))
            seen = kinds[kind] = _Seen(facts_of(place, loader), checked)
        elif seen is None:
            self._left_out.setdefault(place, set()).add(kind)
        batches = itertools.islice(self._begin(loader), self._batches)
        return batches if seen is None else seen.watched(batches)


@dataclasses.dataclass
class _Seen:
    """Holds a loader that was checked, and what the script has got of all that are of its kind: `steps_s` is how long
    it had each batch, `most` how many it had of one iterator."""

    facts: LoaderFacts
    checked: LoaderCheck
    steps_s: list[float] = dataclasses.field(default_factory=list)
    most: int = 0

    def watched(self, batches: Iterator[Any]) -> Iterator[Any]:
        for count, batch in enumerate(batches, 1):
            self.most = max(self.most, count)
            handed_s = time.perf_counter()
            yield batch
            self.steps_s.append(time.perf_counter() - handed_s)


def _failure(code: object) -> str:
    """Returns what SystemExit's code says, as Python takes it: none, or 0, is success, text goes to stderr."""
    if code is None or code == 0:
        return ""
    if isinstance(code, int):
        return f"the script exited with code {code}"
    print(code, file=sys.stderr, flush=True)
    return f"the script exited: {code}"


def main() -> int:
    """Runs the script and reports. Returns the exit code: 0 all loaders gave what DataLoader gives, 1 none was seen or
    the script failed, 3 some did not."""
    options = _options()
    sys.argv = [options.script, *options.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(options.script))
    check = ScriptCheck(options.batches, options.seconds)
    # A socket's path is short, and TMPDIR may be anything.
    room = SOCKET_PATH_LIMIT - len(f"/{DIRECTORY}????????/{SOCKET}")
    parent = None if len(os.fsencode(tempfile.gettempdir())) <= room else "/tmp"
    with tempfile.TemporaryDirectory(prefix=DIRECTORY, dir=parent, ignore_cleanup_errors=True) as directory:
        os.environ |= {SOCKET_VARIABLE: f"{directory}/{SOCKET}", "PREFETCHD_INLINE": ""}
        _prefetchd(START)
        try:
            failure = check.run(options.script)
        except Exception:
            failure = "the script ended with the error above"
            traceback.print_exc()
        finally:
            _prefetchd(STOP)
    reports = check.reports()
    for report in reports:
        print(f"\n{report.title}")
        for line in report.lines:
            print(f"  {line}")
    if failure:
        print(f"\n{failure}; perhaps as its epochs were cut short")
    if not reports:
        print("\nthe script has iterated over no DataLoader", file=sys.stderr)
    if failure or not reports:
        return NOTHING_SEEN
    return UNEQUAL if any(report.is_unequal for report in reports) else 0


def _prefetchd(arguments: list[str]) -> None:
    """Runs `prefetchd` for a daemon of its own: a configuration is not read, and ports stay others'."""
    environment = {name: value for name, value in os.environ.items() if name not in (CONFIG_VARIABLE, METRICS_VARIABLE)}
    command = [sys.executable, "-m", "prefetchd", *arguments]
    subprocess.run(command, capture_output=True, check=False, env=environment)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="prefetchd doctor --script")
    parser.add_argument("--batches", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
