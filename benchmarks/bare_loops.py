"""This module measures the bounds that no loader passes: the same work in bare loops, one a process, handed to
nobody."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch.utils.data import Dataset, default_collate


def samples_a_second(dataset: Dataset[Any], batch_size: int, processes: int, samples: int) -> float:
    """Loads and collates `samples` samples in all, in `processes` processes of one thread that start together. Returns
    samples a second."""

    def loop(process: int, barrier: Barrier) -> None:
        order = torch.randperm(len(dataset)).tolist()  # type: ignore[arg-type]
        # A first batch before the clock starts: imports and caches are nobody's loading.
        default_collate([dataset[index] for index in order[:batch_size]])
        barrier.wait()
        for first in range(process * batch_size, samples, processes * batch_size):
            places = range(first, min(first + batch_size, samples))
            default_collate([dataset[order[place % len(order)]] for place in places])

    return samples / _together(loop, processes)


def copies_a_second(samples: torch.Tensor, batch_size: int, processes: int, batches: int) -> float:
    """Copies random rows of `samples` into resident shared memory, in `processes` processes, each with its part of the
    rows of every batch. Returns batches a second."""
    target = torch.empty(8, batch_size, *samples.shape[1:], dtype=samples.dtype).share_memory_()
    target.view(torch.uint8).fill_(1)

    def loop(process: int, barrier: Barrier) -> None:
        order = torch.randperm(len(samples)).tolist()
        rows = range(process * batch_size // processes, (process + 1) * batch_size // processes)
        barrier.wait()
        place = 0
        for batch in range(batches):
            for row in rows:
                target[batch % 8, row] = samples[order[place % len(order)]]
                place += 1

    return batches / _together(loop, processes)


def _together(loop: Callable[[int, Barrier], None], processes: int) -> float:
    """Runs the loop in all processes. Returns seconds from the barrier that all pass until the last one is done."""
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(processes + 1)

    def begin(process: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(process)
        loop(process, barrier)

    running = [context.Process(target=begin, args=(process,)) for process in range(processes)]
    for each in running:
        each.start()
    barrier.wait()
    began_s = time.perf_counter()
    for each in running:
        each.join()
        if each.exitcode:
            raise RuntimeError(f"a bare loop ended with {each.exitcode}")
    return time.perf_counter() - began_s
