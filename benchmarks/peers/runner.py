"""This module runs the contestants, each a process in its own venv, in turn, round after round."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from prefetchd_demo.machine import describe_machine

from benchmarks.peers import results
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.environments import ROOT, cache_directory, python_of
from benchmarks.peers.feeds import Data
from benchmarks.peers.job import Job
from benchmarks.peers.protocol import Line, ProtocolError, last_word
from benchmarks.peers.usage import MARK, end_all
from benchmarks.peers.works import work_module

BETWEEN_RUNS_S = 3.0
"""How soon somebody starts a script again."""
WITHIN_S = 100.0
PREPARED_WITHIN_S = 600.0
DONE = "done"


class ContestantFailedError(Exception):
    """Raised with what a contestant said, or with the end of what it printed."""


def prepare(contestants: Sequence[str], data: Data) -> None:
    """Has each contestant write its own format, once; not measured. One that cannot is told, and fails in its works."""
    for name in contestants:
        stamp = data.made / name / DONE
        if stamp.exists():
            continue
        print(f"preparing {name}'s own data", flush=True)
        shutil.rmtree(stamp.parent, ignore_errors=True)
        stamp.parent.mkdir(parents=True)
        with _place() as (mark, environment):
            try:
                _said(Job(name, "", data, mark, role="prepare"), environment, PREPARED_WITHIN_S)
                stamp.touch()
            except ContestantFailedError as error:
                print(f"  {name}: {error}", flush=True)


def run_round(work: str, contestants: Sequence[str], data: Data, kept: Path, *, is_quick: bool) -> None:
    """Runs each contestant once, and keeps what it has measured."""
    number = results.next_round(results.read(kept), work)
    for name in contestants:
        if work in CONTESTANTS[name].cannot:
            continue
        run = results.Run(work, name, number, str(dt.date.today()), describe_machine())
        try:
            said = run_once(work, name, data, is_quick=is_quick)
        except (ContestantFailedError, ProtocolError) as error:
            said = {"measures": {}, "versions": {}, "reason": str(error)}
        found = dict(vars(run)) | {key: said[key] for key in ("measures", "versions", "reason") if key in said}
        results.add(kept, results.Run(**found))
        shown = "  ".join(f"{measure} {value:,.2f}" for measure, value in said["measures"].items())
        print(f"  {work}, round {number}: {name:20} {shown or said['reason']}", flush=True)


def run_once(work: str, contestant: str, data: Data, *, is_quick: bool) -> Line:
    """Returns what a contestant said of one run. Raises ContestantFailedError, ProtocolError."""
    with _place() as (mark, environment):
        job = Job(contestant, work, data, mark, is_quick=is_quick)
        for _ in range(work_module(work).WORK.runs_before):
            _said(job, environment, WITHIN_S)
            time.sleep(BETWEEN_RUNS_S)
        return _said(job, environment, WITHIN_S)


@contextlib.contextmanager
def _place() -> Iterator[tuple[str, dict[str, str]]]:
    """Yields a contestant's mark and environment; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="prefetchd-bench-") as directory:
        mark = f"{directory}/d.sock"
        environment = dict(os.environ) | {MARK: mark, "XDG_STATE_HOME": directory}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "client")])
        # Without it each process would compile its modules anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        try:
            yield mark, environment
        finally:
            if Path(mark).exists():
                stop = [sys.executable, "-m", "prefetchd", "stop"]
                subprocess.run(stop, check=False, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
            end_all(mark)


def _said(job: Job, environment: dict[str, str], within_s: float) -> Line:
    log = cache_directory() / "contestant.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    fields = json.loads(job.to_json()) | {"spawned_s": time.monotonic()}
    command = [
        str(python_of(CONTESTANTS[job.contestant].venv)),
        "-m",
        "benchmarks.peers.contestant",
        json.dumps(fields),
    ]
    with open(log, "w") as errors:
        try:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                timeout=within_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ContestantFailedError(f"no result within {within_s:.0f} s") from None
    try:
        said = last_word(done.stdout.splitlines())
    except ProtocolError as error:
        raise ContestantFailedError(f"{error}: {log.read_text()[-300:]}") from None
    if said["event"] != "result":
        raise ContestantFailedError(said["reason"])
    return said
