"""Makes a process look like one of DataLoader's workers to the user's code and to torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.utils.data._utils.collate as torch_collate
import torch.utils.data._utils.worker as torch_worker

from prefetchd.plan.seeds import worker_seed
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.program import Program


@contextlib.contextmanager
def as_torch_worker(spec: StreamSpec, program: Program, worker_index: int, workers: int) -> Iterator[None]:
    """Makes get_worker_info answer in the block as in DataLoader's workers, if the program is to see any, and keeps
    default_collate out of shared memory.

    In a DataLoader worker default_collate stacks into a new shared segment a tensor; here the stack is copied into the
    slot, so it belongs into ordinary memory.
    """
    told = torch_worker._worker_info
    collate_tensors = torch_collate.default_collate_fn_map[torch.Tensor]

    def collate_privately(batch: Any, *, collate_fn_map: Any = None) -> Any:
        # default_collate uses shared memory wherever get_worker_info() says that this is a worker.
        info, torch_worker._worker_info = torch_worker._worker_info, None
        try:
            return collate_tensors(batch, collate_fn_map=collate_fn_map)
        finally:
            torch_worker._worker_info = info

    if program.has_worker_info:
        torch_worker._worker_info = torch_worker.WorkerInfo(
            id=worker_index,
            num_workers=workers,
            seed=worker_seed(spec.seed, worker_index, spec.rank),
            dataset=program.dataset,
        )
    torch_collate.default_collate_fn_map[torch.Tensor] = collate_privately
    try:
        yield
    finally:
        torch_worker._worker_info = told
        torch_collate.default_collate_fn_map[torch.Tensor] = collate_tensors
