"""How soon is a change of the progress file acted upon? Batches as files.

    python -m benchmarks.progress_latency [--moves N]

A trainer moves 10 batches ahead, as far as the buffer reaches, by writing its file. Measured is the time until the
last passed file is gone, and until the last of the ten that follow is there. First on a local disk; then where nobody
tells of changes, as on a network's file system, so that the file is looked at four times a second: there it is a link
to a file in a directory that the daemon does not watch.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.harness import describe_machine, own_daemon
from prefetchd.wire.batch_file import file_name

BUFFER = 10
SECONDS = 30.0


def run(moves: int, *, watched: bool) -> tuple[list[float], list[float]]:
    """Returns seconds to (the eviction, the last batch made) of each move."""
    disk = Path(tempfile.mkdtemp(prefix="prefetchd-bench-", dir="/dev/shm"))
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as elsewhere:
        written, config = Path(directory if watched else elsewhere, "progress.txt"), Path(directory, "streams.toml")
        told = Path(directory, "progress.txt")
        if not watched:
            told.symlink_to(written)
        config.write_text(
            f'[streams.s]\ndataset = "benchmarks.reference.r1.pictures:make"\ndataset_args = {{length = 100000}}\n'
            f"cwd = '{os.getcwd()}'\nbatch_size = 1\nbuffer = {BUFFER}\nstore = {{files = '{disk}'}}\n"
            f"progress = {{file = '{told}'}}\n"
        )
        try:
            with own_daemon(config=config):
                wait_for(disk / file_name((0, BUFFER - 1)), True)
                gone, made = [], []
                for move in range(1, moves + 1):
                    written.write_text(f"0\n{move * BUFFER}\n")
                    began_s = time.perf_counter()
                    wait_for(disk / file_name((0, move * BUFFER - 1)), False)
                    gone.append(time.perf_counter() - began_s)
                    wait_for(disk / file_name((0, (move + 1) * BUFFER - 1)), True)
                    made.append(time.perf_counter() - began_s)
        finally:
            shutil.rmtree(disk)
    return gone, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--moves", type=int, default=100)
    arguments = parser.parse_args()
    print(describe_machine())
    for where, watched in (("on a local disk", True), ("where nobody tells of changes", False)):
        gone, made = run(arguments.moves, watched=watched)
        print(f"a change of the progress file, {where}")
        for what, found in (("evicted", gone), (f"{BUFFER} batches made", made)):
            low, *_, high = statistics.quantiles(found, n=100, method="inclusive")
            print(
                f"  {what:16} median {statistics.median(found) * 1e3:6.1f} ms   ({low * 1e3:.1f} to {high * 1e3:.1f})"
            )


def wait_for(path: Path, there: bool) -> None:
    deadline_s = time.monotonic() + SECONDS
    while path.exists() is not there:
        if time.monotonic() >= deadline_s:
            raise SystemExit(f"{path} is {'not ' if there else ''}there after {SECONDS:.0f} s")
        time.sleep(0.0002)


if __name__ == "__main__":
    main()
