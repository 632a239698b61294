"""The tests that are left out, and why: they look at DataLoader's own inside, or at what differs on purpose."""

from __future__ import annotations

OWN_PROCESSES = "DataLoader's own worker processes, which the iterator lists: their pids, their end"
OWN_EXIT = "the private hook with which DataLoader's persistent workers end at exit"
BARRIER = (
    "each sample waits until every worker is at one: here the first is made alone, for it tells how large a batch is"
)
SEEDS = "torch.initial_seed() in a sample is the sample's, not the worker's: what it draws depends on no worker"
SEEDED_BETWEEN = "torch.manual_seed() between two epochs decides no order: that follows from the loader's seed"
BY_VALUE = "a local function is an error where workers are not forked: here it is handed on by value, and works"
ANY_WORKER = "which worker makes which batch: without a worker_init_fn, whichever is free"
ALWAYS_IN_ORDER = "in_order=False has no meaning: batches always come in their order"

REASONS: dict[str, str] = {
    "TestDataLoader.test_get_worker_info": OWN_PROCESSES,
    "TestDataLoader.test_partial_workers": OWN_PROCESSES,
    "TestDataLoader.test_worker_init_fn": SEEDS,
    "TestDataLoader.test_worker_init_fn_forkserver": BY_VALUE,
    "TestDataLoader.test_worker_seed": BARRIER,
    "TestDataLoader.test_worker_seed_reproducibility": BARRIER,
    "TestDataLoaderPersistentWorkers.test_persistent_workers_pin_memory_atexit_registered_once": OWN_EXIT,
    "TestDataLoaderPersistentWorkers.test_persistent_workers_pin_memory_atexit_uses_iterator_shutdown": OWN_EXIT,
    "TestOutOfOrderDataLoader.test_in_order_index_ds": ANY_WORKER,
    "TestOutOfOrderDataLoader.test_out_of_order_index_ds": ALWAYS_IN_ORDER,
    "TestOutOfOrderDataLoader.test_out_of_order_iterable_ds": ALWAYS_IN_ORDER,
    # Of older versions of the file.
    "IntegrationTestDataLoaderDataPipe.test_shuffler_iterdatapipe": SEEDED_BETWEEN,
}

INHERITED = {"TestDataLoaderPersistentWorkers": "TestDataLoader"}
"""The class that runs all tests of another, in its own way."""


def reason(name: str) -> str:
    """Why the test `Class.function` is left out; empty when it is not."""
    kind, _, function = name.partition(".")
    return REASONS.get(name) or REASONS.get(f"{INHERITED.get(kind, kind)}.{function}", "")
