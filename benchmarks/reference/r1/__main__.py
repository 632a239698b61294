"""How long does the trainer wait? R1's own script, and a declared stream in its place, in turn.

    python -m benchmarks.reference.r1 [--rounds N] [--epochs N]

Both make batches of augmented JPEGs on all CPUs, from 16 to 20 ahead of a trainer that writes its two lines every 4
batches. The trainer takes a batch as often as a plain pool can make them, less 15 %. The script looks four times
in the time that its buffer lasts. Reported are the seconds that the trainer waited for files: for its first one, which
is the time to start and to fill, and for all others; a batch is late when its file is not there at the first look.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file

from benchmarks.harness import describe_machine
from benchmarks.reference.r1.script import make_batch
from benchmarks.reference.r1.trainer import Waited, train

BATCHES, BATCH_SIZE = 100, 16
LOW, HIGH, WRITE_EVERY = 16, 20, 4
SPARE = 1.15


@contextlib.contextmanager
def places() -> Iterator[tuple[str, str]]:
    """Makes a directory on the RAM disk, and a progress file."""
    disk = tempfile.mkdtemp(prefix="prefetchd-r1-", dir="/dev/shm")
    with tempfile.TemporaryDirectory() as directory:
        try:
            yield disk, f"{directory}/progress.txt"
        finally:
            shutil.rmtree(disk)


def batch_s() -> float:
    """Returns the seconds that a pool on all CPUs takes for a batch."""
    count = 40
    with places() as (disk, _), multiprocessing.Pool(os.cpu_count()) as pool:
        pool.map(make_batch, [(disk, number, BATCHES, BATCH_SIZE) for number in range(4)], chunksize=1)
        began_s = time.perf_counter()
        pool.map(make_batch, [(disk, number, BATCHES, BATCH_SIZE) for number in range(count)], chunksize=1)
        return (time.perf_counter() - began_s) / count


def with_script(step_s: float, epochs: int) -> Waited:
    with places() as (disk, progress):
        numbers = [BATCHES, BATCH_SIZE, LOW, HIGH, HIGH * step_s / 4, epochs]
        command = [sys.executable, "-m", "benchmarks.reference.r1.script", disk, progress, *map(str, numbers)]
        script = subprocess.Popen(command, start_new_session=True)
        try:
            return train(
                lambda epoch, batch: f"{disk}/{epoch * BATCHES + batch}.pt",
                torch.load,
                progress,
                epochs=epochs,
                batches=BATCHES,
                step_s=step_s,
                write_every=WRITE_EVERY,
            )
        finally:
            os.killpg(script.pid, 15)
            script.wait()


def with_daemon(step_s: float, epochs: int) -> Waited:
    with places() as (disk, progress), tempfile.TemporaryDirectory(prefix="prefetchd-bench-") as directory:
        config = Path(directory, "streams.toml")
        config.write_text(
            f'[streams.r1]\ndataset = "benchmarks.reference.r1.pictures:make"\n'
            f"dataset_args = {{length = {BATCHES * BATCH_SIZE}}}\ncwd = '{os.getcwd()}'\nbatch_size = {BATCH_SIZE}\n"
            f"shuffle = true\nbuffer = {HIGH}\nlow_watermark = {LOW}\nhigh_watermark = {HIGH}\nepochs = {epochs}\n"
            f"store = {{files = '{disk}'}}\nprogress = {{file = '{progress}'}}\n"
        )
        environment = {**os.environ, "PREFETCHD_SOCKET": f"{directory}/d.sock", "XDG_STATE_HOME": directory}
        prefetchd = [sys.executable, "-m", "prefetchd"]
        # Its log goes to stderr.
        command = [*prefetchd, "run", "--config", str(config)]
        daemon = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        try:
            return train(
                lambda epoch, batch: f"{disk}/epoch{epoch:06}-batch{batch:08}.safetensors",
                load_file,
                progress,
                epochs=epochs,
                batches=BATCHES,
                step_s=step_s,
                write_every=WRITE_EVERY,
            )
        finally:
            subprocess.run([*prefetchd, "stop"], check=True, env=environment, stdout=subprocess.DEVNULL)
            daemon.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    # Not the fastest moment: what is made must keep up with what is taken at any.
    step_s = SPARE * max(batch_s() for _ in range(3))
    print(describe_machine())
    print(f"a batch of {BATCH_SIZE} every {step_s * 1e3:.1f} ms, {arguments.epochs} epochs of {BATCHES}")
    for number in range(arguments.rounds):
        for name, run in (("R1's script", with_script), ("prefetchd", with_daemon)):
            waited = run(step_s, arguments.epochs)
            print(
                f"  round {number + 1}  {name:12} waited {waited.first_s:6.2f} s for the first batch, "
                f"{waited.others_s:7.3f} s for all others, {waited.late} of which were late; "
                f"{waited.others_s / waited.total_s:.2%} and, with the first, "
                f"{(waited.first_s + waited.others_s) / waited.total_s:.1%} of the run of {waited.total_s:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
