"""How fast does a worker write a batch's file? Against cp of a new file of that size, to the same tmpfs.

    python -m benchmarks.file_writes [--rounds N]

A batch of 64 x 3 x 224 x 224 float32 and its labels, 37 MiB: encoded and written, then unlinked. cp copies the file of
one that lies on the same tmpfs; the start of its process is measured apart, and taken off.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch

from benchmarks.harness import interleave, report, stopwatch
from prefetchd.wire.batch_file import STREAM_FILE
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.file_codec import FilePlace, encode_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    spec = StreamSpec("0" * 32, 0, "sequential", 64, 64, name="benchmark")
    batch = (torch.rand(64, 3, 224, 224), torch.arange(64))
    disk = Path(tempfile.mkdtemp(prefix="prefetchd-bench-", dir="/dev/shm"))
    try:
        (disk / STREAM_FILE).touch()
        original, target = disk / "original", disk / "target"
        encode_file(batch, spec, (0, 0)).write(FilePlace(str(original), str(disk / STREAM_FILE)))
        gibibytes = original.stat().st_size / (1 << 30)

        def write() -> float:
            elapsed = stopwatch()
            encode_file(batch, spec, (0, 1)).write(FilePlace(str(target), str(disk / STREAM_FILE)))
            rate = gibibytes / elapsed()
            target.unlink()
            return rate

        def copy() -> float:
            elapsed = stopwatch()
            subprocess.run(["cp", "/dev/null", str(target)], check=True)
            start_s = elapsed()
            os.unlink(target)
            elapsed = stopwatch()
            subprocess.run(["cp", str(original), str(target)], check=True)
            rate = gibibytes / (elapsed() - start_s)
            target.unlink()
            return rate

        figures = interleave(arguments.rounds, {"prefetchd": write, "cp": copy})
    finally:
        shutil.rmtree(disk)
    report("writing a batch's file", "GiB/s", figures, "prefetchd", {"cp": 0.8})


if __name__ == "__main__":
    main()
