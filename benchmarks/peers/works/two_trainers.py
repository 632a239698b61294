"""Two trainers of the same data at once, each a process: what do they get together, and for how much CPU?

Where a contestant shares batches among trainers, both have the same ones; else each has a loader of its own. A trainer
says that it is ready, begins when it is told to, and goes when its standard input ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
from collections.abc import Callable, Iterator

from benchmarks.peers.job import Job
from benchmarks.peers.protocol import Line, ProtocolError, parse
from benchmarks.peers.usage import CpuMeter, pss_mb
from benchmarks.peers.works.throughput import endless, take, warm_up
from benchmarks.peers.works.work import THROUGHPUT, Work

TRAINERS = 2
WORK = Work(
    "two trainers",
    "Two trainers of JPEGs to bytes at once, both's samples counted. prefetchd and TensorSocket give both the same.",
    "jpeg-bytes",
    THROUGHPUT,
)
Process = subprocess.Popen[str]


def measure(job: Job) -> dict[str, float]:
    """Starts the trainers, lets them begin together, and adds up what they say."""
    roles = [("producer", 0)] if hasattr(job.module, "produce") else []
    roles += [("trainer", number) for number in range(TRAINERS)]
    is_alone = getattr(job.module, "STARTS_ALONE", False)
    with contextlib.ExitStack() as stack:
        trainers = []
        for role, number in roles:
            process = stack.enter_context(_process(dataclasses.replace(job, role=role, trainer=number)))
            if role == "trainer":
                trainers.append(process)
            if role == "trainer" and is_alone:
                _hear(process, "ready")
        for process in [] if is_alone else trainers:
            _hear(process, "ready")
        cpu = CpuMeter(job.mark)
        for each in trainers:
            assert each.stdin is not None
            each.stdin.write("go\n")
            each.stdin.flush()
        found = [_hear(each, "result")["measures"] for each in trainers]
        spent_s = cpu.spent_s()
        return {
            "samples_per_s": sum(each["samples_per_s"] for each in found),
            "cpu_s_per_1000": spent_s / sum(each["samples"] for each in found) * 1000,
            "pss_mb": pss_mb(job.mark),
        }


def train(job: Job, tell: Callable[[str, dict[str, float]], None]) -> None:
    """Runs one of the trainers; `tell` takes an event and measures."""
    batches = endless(job.loader(WORK.feed))
    warm_up(batches, job)
    tell("ready", {})
    sys.stdin.readline()
    tell("result", take(batches, job))
    sys.stdin.readline()


@contextlib.contextmanager
def _process(job: Job) -> Iterator[Process]:
    command = [sys.executable, "-m", "benchmarks.peers.contestant", job.to_json()]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _hear(process: Process, event: str) -> Line:
    """Waits for that event. Raises ProtocolError with what the process says instead."""
    assert process.stdout is not None
    for said in filter(None, map(parse, process.stdout)):
        if said["event"] == event:
            return said
        raise ProtocolError(str(said.get("reason", said["event"])))
    raise ProtocolError("a trainer ended without a result")
