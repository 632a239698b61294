"""This program is one contestant in one work: it runs in the contestant's own venv, and says what it has measured.

    python -m benchmarks.peers.contestant JOB

JOB is a Job as JSON. Called by the runner, and by works that have several processes.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import traceback
from typing import TextIO

from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.job import Job
from benchmarks.peers.protocol import say, take_standard_output
from benchmarks.peers.works import two_trainers, work_module

COMMON = ("torch", "numpy")


def main() -> None:
    job = Job.from_json(sys.argv[1])
    output = take_standard_output()
    try:
        run(job, output)
        code = 0
    except Exception as error:
        traceback.print_exc()
        say(output, "failed", reason=f"{type(error).__name__}: {error}"[:300])
        code = 1
    # Threads and processes of a package may have no end of their own: the runner ends what is left.
    sys.stderr.flush()
    os._exit(code)


def run(job: Job, output: TextIO) -> None:
    """Does what the job's role is; a work's own process says the result."""
    if job.role == "producer":
        job.module.produce(job)
    elif job.role == "trainer":
        two_trainers.train(job, lambda event, measures: say(output, event, measures=measures, versions={}))
    elif job.role == "prepare":
        prepare = getattr(job.module, "prepare", None)
        if prepare is not None:
            prepare(job.data)
        say(output, "result", measures={}, versions=versions(job))
    else:
        say(output, "result", measures=work_module(job.work).measure(job), versions=versions(job))


def versions(job: Job) -> dict[str, str]:
    """Returns the versions of what a contestant consists of."""
    return {name: importlib.metadata.version(name) for name in (*CONTESTANTS[job.contestant].distributions, *COMMON)}


if __name__ == "__main__":
    main()
