"""Says how many workers there is memory for: arithmetic on what a worker costs and what there is. Pure.

Rules, whose reasons are in decision 0114
 1. The workers of all streams that are tuned take no more than a bound together: `[daemon] worker_memory`, else
    SHARE of what was free when the daemon began.
 2. What is free now stays free by SPARE of what was free then.
 3. One that is there already is not ended for memory that it has not taken yet; a stream has one worker at least. One
    that alone takes more than somebody has allowed for all is an error.
"""

from __future__ import annotations

from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.records import record

SHARE = 0.75
SPARE = 0.125


@record
class Memory:
    """What there is for the workers of tuned streams, in bytes: `bound_bytes` for all of them, of which `taken_bytes`
    are; `free_bytes` of the machine, or of the daemon's cgroup, of which `spare_bytes` are to stay free."""

    bound_bytes: int
    taken_bytes: int
    free_bytes: int
    spare_bytes: int


def is_too_large(worker_bytes: int, bound_bytes: int) -> str:
    """Returns why not even one worker may be there, for people; empty when it may. `bound_bytes` was said by
    somebody."""
    if worker_bytes <= bound_bytes:
        return ""
    return (
        f"a worker takes {format_bytes(worker_bytes)}, and all workers together may take {format_bytes(bound_bytes)}: "
        "give them more with `[daemon] worker_memory` (`--worker-memory`), or say how many there are (num_workers=)"
    )


def most_workers(workers: int, worker_bytes: int, memory: Memory) -> tuple[int, str]:
    """Returns how many workers a stream may have that has `workers` by now, of `worker_bytes` each; and for people, why
    no more."""
    by_bound = memory.bound_bytes - memory.taken_bytes
    by_free = memory.free_bytes - memory.spare_bytes
    size = max(1, worker_bytes)
    most = max(1, workers + min(by_bound, by_free) // size)
    if by_bound <= by_free:
        why = f"workers may take {format_bytes(memory.bound_bytes)} together (`[daemon] worker_memory`)"
    else:
        why = f"{format_bytes(max(0, memory.free_bytes))} of memory are free"
    return most, f"{why}, and one takes {format_bytes(worker_bytes)}"
