"""This is R1's second script, in the plain way that its author describes.

    python -m benchmarks.reference.r1.script DIRECTORY PROGRESS BATCHES_AN_EPOCH BATCH_SIZE LOW HIGH POLL_S EPOCHS

Every POLL_S seconds it looks where the trainer is, where the buffer starts and where it ends. It deletes batches that
the trainer has passed, and when fewer than LOW are waiting it preprocesses more on all CPUs and puts them at the end,
until HIGH wait.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import sys
import time

import torch
from torch.utils.data import default_collate

from benchmarks.reference.r1.pictures import Pictures


def read_progress(path: str) -> tuple[int, int]:
    try:
        with open(path) as file:
            epoch, batch = file.read().split()
        return int(epoch), int(batch)
    except (FileNotFoundError, ValueError):
        return 0, 0


def make_batch(job: tuple[str, int, int, int]) -> None:
    directory, number, batches, batch_size = job
    torch.set_num_threads(1)
    epoch, batch = divmod(number, batches)
    dataset = Pictures(batches * batch_size)
    order = list(range(len(dataset)))
    random.Random(epoch).shuffle(order)
    random.seed(number)
    samples = [dataset[index] for index in order[batch * batch_size : (batch + 1) * batch_size]]
    path = f"{directory}/{number}.pt"
    torch.save(default_collate(samples), path + ".tmp")
    os.rename(path + ".tmp", path)


def main() -> None:
    directory, progress = sys.argv[1:3]
    batches, batch_size, low, high = map(int, sys.argv[3:7])
    poll_s, epochs = float(sys.argv[7]), int(sys.argv[8])
    start = end = 0
    with multiprocessing.Pool(os.cpu_count()) as pool:
        while True:
            epoch, batch = read_progress(progress)
            position = epoch * batches + batch
            for number in range(start, position):
                if os.path.exists(f"{directory}/{number}.pt"):
                    os.remove(f"{directory}/{number}.pt")
            start = position
            end = max(end, start)
            if end - start < low:
                wanted = range(end, min(start + high, epochs * batches))
                pool.map(make_batch, [(directory, number, batches, batch_size) for number in wanted], chunksize=1)
                end = wanted.stop
            time.sleep(poll_s)


if __name__ == "__main__":
    main()
