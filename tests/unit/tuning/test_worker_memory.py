"""How many workers there is memory for."""

from __future__ import annotations

import os

import pytest

from prefetchd.supervisor.process_memory import private_bytes
from prefetchd.tuning.worker_memory import Memory, is_too_large, most_workers

GB = 10**9


@pytest.mark.parametrize(
    ("workers", "memory", "most"),
    [
        (2, Memory(10 * GB, 2 * GB, 100 * GB, 0), 10),
        (2, Memory(10 * GB, 2 * GB, 5 * GB, 2 * GB), 5),
        # Others have taken it.
        (4, Memory(10 * GB, 4 * GB, 1 * GB, 2 * GB), 3),
        (4, Memory(2 * GB, 4 * GB, 100 * GB, 0), 2),
        (4, Memory(0, 4 * GB, 0, 0), 1),
    ],
)
def test_as_many_as_the_bound_and_what_is_free_allow(workers, memory, most):
    assert most_workers(workers, GB, memory)[0] == most


def test_it_is_said_what_is_in_the_way():
    assert most_workers(1, GB, Memory(GB, GB, 9 * GB, 0))[1] == (
        "workers may take 953.7 MiB together (`[daemon] worker_memory`), and one takes 953.7 MiB"
    )
    assert most_workers(1, GB, Memory(9 * GB, GB, GB, GB))[1] == "953.7 MiB of memory are free, and one takes 953.7 MiB"


def test_what_a_process_has_for_itself():
    before = private_bytes(os.getpid())
    kept = bytearray(b"x") * (64 << 20)
    after = private_bytes(os.getpid())
    assert after - before > 48 << 20
    assert kept
    assert private_bytes(1 << 30) is None


def test_a_bound_that_is_too_small_for_one_is_named_with_both_figures():
    assert not is_too_large(10 << 20, 10 << 20)
    why = is_too_large(30 << 20, 10 << 20)
    for said in ("30.0 MiB", "10.0 MiB", "`[daemon] worker_memory`"):
        assert said in why
