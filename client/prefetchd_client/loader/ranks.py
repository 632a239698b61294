"""resolve_rank tells which share of each epoch is this process's: all of it, unless it was asked for otherwise."""

from __future__ import annotations

import os
from typing import Any

import torch.distributed

from prefetchd.wire.errors import CallerError

AUTO = "auto"


def resolve_rank(rank: Any, world_size: Any) -> tuple[Any, Any]:
    """Returns (rank, world_size); (0, 1) when neither is given, whatever other processes there are: as with DataLoader.
    rank="auto" is what process_rank() tells. What was given stays as it is. Raises CallerError."""
    if isinstance(rank, str):
        if rank != AUTO or world_size is not None:
            raise CallerError(f'rank={rank!r}, world_size={world_size!r}; allowed: rank="auto" alone, or two numbers')
        return process_rank()
    if (rank is None) != (world_size is None):
        given = "rank" if world_size is None else "world_size"
        raise CallerError(f'{given}= alone; allowed: rank= and world_size= together, rank="auto", or neither')
    return (0, 1) if rank is None else (rank, world_size)


def process_rank() -> tuple[int, int]:
    """Returns (rank, world_size) of this process in torch.distributed, or by what torchrun has set; (0, 1) where
    nothing tells of other processes."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    told = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    # Others than torchrun set such variables too: only together they can mean this.
    if all(each is not None and each.isdecimal() for each in told):
        found_rank, found_size = int(told[0] or 0), int(told[1] or 1)
        if found_rank < found_size:
            return found_rank, found_size
    return 0, 1
