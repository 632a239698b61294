"""The bound that no loader passes: the same samples made in bare loops, one a process, and handed to nobody."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate


def samples_a_second(dataset: Dataset[Any], batch_size: int, processes: int, samples: int) -> float:
    """Loads and collates `samples` samples in all, in `processes` processes of one thread that start together."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes + 1)
    loops = [
        context.Process(target=_loop, args=(dataset, batch_size, process, processes, samples, barrier))
        for process in range(processes)
    ]
    for loop in loops:
        loop.start()
    barrier.wait()
    began_s = time.perf_counter()
    for loop in loops:
        loop.join()
        if loop.exitcode:
            raise RuntimeError(f"a bare loop ended with {loop.exitcode}")
    return samples / (time.perf_counter() - began_s)


def _loop(dataset: Dataset[Any], batch_size: int, process: int, processes: int, samples: int, barrier: Barrier) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(process)
    order = torch.randperm(len(dataset)).tolist()  # type: ignore[arg-type]
    # A first batch before the clock starts: imports and caches are nobody's loading.
    default_collate([dataset[index] for index in order[:batch_size]])
    barrier.wait()
    for first in range(process * batch_size, samples, processes * batch_size):
        places = range(first, min(first + batch_size, samples))
        default_collate([dataset[order[place % len(order)]] for place in places])
