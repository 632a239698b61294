"""Wrong arguments: DataLoader's own errors word for word, and ours, which name the argument and what is allowed."""

from __future__ import annotations

import io
import sqlite3
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from prefetchd_client import PrefetchLoader
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from prefetchd.wire.errors import BufferTooSmallError, CallerError, ClosedError, UnpicklableError
from tests.scenario.bad_datasets import Lengthless
from tests.scenario.datasets import Made, Numbers

pytestmark = pytest.mark.usefixtures("shared_daemon")

EXECUTED = pytest.mark.usefixtures("executed")
"""Where workers are forked from the trainer, nothing has to be pickled (test_forked_zygotes)."""


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(10))


DATASET = Numbers(20)
BATCHES = BatchSampler(SequentialSampler(DATASET), 2, False)

WRONG_FOR_DATALOADER = {
    "batch_size 0": {"batch_size": 0},
    "batch_size negative": {"batch_size": -4},
    "batch_size float": {"batch_size": 2.5},
    "batch_size bool": {"batch_size": True},
    "batch_size text": {"batch_size": "4"},
    "batch_size numpy": {"batch_size": np.int64(4)},
    "drop_last text": {"drop_last": "yes"},
    "drop_last without batches": {"batch_size": None, "drop_last": True},
    "num_workers negative": {"num_workers": -1},
    "num_workers text": {"num_workers": "two"},
    "timeout negative": {"timeout": -1},
    "timeout text": {"timeout": "soon"},
    "prefetch_factor without workers": {"prefetch_factor": 2},
    "prefetch_factor negative": {"prefetch_factor": -2, "num_workers": 1},
    "persistent_workers without workers": {"persistent_workers": True},
    "multiprocessing_context without workers": {"multiprocessing_context": "fork"},
    "multiprocessing_context unknown": {"multiprocessing_context": "teleport", "num_workers": 1},
    "multiprocessing_context of another type": {"multiprocessing_context": 3, "num_workers": 1},
    "sampler and shuffle": {"sampler": SequentialSampler(DATASET), "shuffle": True},
    "batch_sampler and batch_size": {"batch_sampler": BATCHES, "batch_size": 2},
    "batch_sampler and shuffle": {"batch_sampler": BATCHES, "shuffle": True},
    "batch_sampler and drop_last": {"batch_sampler": BATCHES, "drop_last": True},
    "generator of another type": {"generator": 7, "shuffle": True},
    "unknown argument": {"colour": "red"},
    "shuffle of an empty dataset": {"dataset": Numbers(0), "shuffle": True},
    "iterable and shuffle": {"dataset": Endless(), "shuffle": True},
    "iterable and sampler": {"dataset": Endless(), "sampler": SequentialSampler(DATASET)},
    "iterable and batch_sampler": {"dataset": Endless(), "batch_sampler": [[1]]},
}


def outcome_of(loader_class, arguments):
    """(type, message) of what the constructor raises, or None."""
    try:
        loader = loader_class(**({"dataset": DATASET} | arguments))
    except Exception as error:
        return type(error), str(error).replace(loader_class.__name__, "DataLoader")
    if isinstance(loader, PrefetchLoader):
        loader.close()
    return None


@pytest.mark.parametrize("arguments", WRONG_FOR_DATALOADER.values(), ids=WRONG_FOR_DATALOADER)
def test_what_dataloader_refuses_is_refused_with_its_words(arguments):
    expected = outcome_of(DataLoader, arguments)
    found = outcome_of(PrefetchLoader, arguments)
    if expected is None:
        # DataLoader finds out later, or never; we may say so at once, in our words.
        assert found is None or issubclass(found[0], CallerError), found
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"seed": -1}, "seed"),
        ({"seed": 1 << 63}, "seed"),
        ({"seed": "7"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"buffer": 0}, "buffer"),
        ({"buffer": -1}, "buffer"),
        ({"buffer": True}, "buffer"),
        ({"buffer": 2.5}, "buffer"),
        ({"buffer": "a lot"}, "buffer"),
        ({"buffer": "4 parsecs"}, "buffer"),
        ({"lookback": -1}, "lookback"),
        ({"lookback": "2"}, "lookback"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": -1, "world_size": 2}, "rank"),
        ({"rank": "0"}, "rank"),
        ({"rank": 0, "world_size": 0}, "world_size"),
        ({"world_size": -3}, "world_size"),
        ({"on_error": "ignore"}, "on_error"),
        ({"stream": "x" * 201}, "stream"),
        ({"stream": "two\nlines"}, "stream"),
        ({"stream": ""}, "stream"),
        ({"stream": 5}, "stream"),
        ({"timeout": float("inf")}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"dataset": Lengthless()}, "len()"),
        ({"socket": "/tmp/" + "x" * 200}, "socket"),
        ({"batch_size": 1 << 70}, "batch_size"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_our_own_arguments_are_checked_at_once_by_name(arguments, told):
    with pytest.raises(CallerError) as caught:
        PrefetchLoader(**({"dataset": DATASET, "batch_size": 4} | arguments))
    assert told in str(caught.value)
    assert "allowed" in str(caught.value) or "has no len()" in str(caught.value)


@pytest.mark.parametrize("buffer", [1, 2, 3])
def test_a_buffer_of_too_few_batches_is_refused_at_once(buffer):
    with pytest.raises(BufferTooSmallError, match=f"buffer={buffer}.*4"):
        PrefetchLoader(DATASET, batch_size=4, buffer=buffer)


def test_numpy_numbers_will_do():
    with PrefetchLoader(
        DATASET,
        batch_size=4,
        num_workers=np.int64(1),
        seed=np.int64(7),
        rank=np.int32(1),
        world_size=np.int64(2),
        buffer=np.int64(6),
        lookback=np.int64(0),
        timeout=np.float32(60),
    ) as loader:
        assert [index.tolist() for _, index in loader] == [[1, 3, 5, 7], [9, 11, 13, 15], [17, 19]]
        assert loader.spec.seed == 7


def test_epochs_are_not_negative():
    with (
        PrefetchLoader(DATASET, batch_size=4, buffer=6) as loader,
        pytest.raises(CallerError, match="epoch is -1; allowed: a whole number"),
    ):
        loader.set_epoch(-1)


def test_a_closed_loader_says_so():
    loader = PrefetchLoader(DATASET, batch_size=4, buffer=6)
    running = iter(loader)
    next(running)
    loader.close()
    loader.close()
    with pytest.raises(ClosedError, match="closed"):
        next(iter(loader))
    with pytest.raises(StopIteration):
        next(running)


# --- datasets that cannot be pickled ---


class Holder(Numbers):
    """Holds anything, somewhere."""

    def __init__(self, **held: object) -> None:
        super().__init__(8)
        self.__dict__.update(held)


class Inner:
    def __init__(self, held: object) -> None:
        self.handle = held


def _generator():
    yield 1


@pytest.mark.parametrize(
    ("held", "what"),
    [
        (lambda: threading.Lock(), "lock"),
        (lambda: sqlite3.connect(":memory:"), "sqlite3"),
        (lambda: Path("/dev/null").open("rb"), "BufferedReader"),  # noqa: SIM115
        (_generator, "generator"),
        (threading.current_thread, "lock"),
    ],
    ids=["lock", "database", "file", "generator", "thread"],
)
@EXECUTED
def test_a_dataset_that_cannot_be_pickled_is_told_with_the_attribute(held, what):
    culprit = held()
    try:
        with pytest.raises(UnpicklableError) as caught:
            PrefetchLoader(Holder(fine=1, broken=culprit), batch_size=4, buffer=6)
        assert "dataset.broken" in str(caught.value)
        assert what in str(caught.value)
        assert "__getstate__" in str(caught.value)
    finally:
        if hasattr(culprit, "close"):
            culprit.close()


@pytest.mark.parametrize(
    ("dataset", "path"),
    [
        (Holder(parts=[0, Inner(threading.Lock())]), "dataset.parts[1].handle"),
        (Holder(by_name={"a": {"b": threading.Lock()}}), "dataset.by_name['a']['b']"),
        (Holder(pair=(1, io.StringIO, threading.Lock())), "dataset.pair[2]"),
    ],
    ids=["list", "dict", "tuple"],
)
@EXECUTED
def test_the_attribute_is_found_where_it_lies_deep(dataset, path):
    with pytest.raises(UnpicklableError) as caught:
        PrefetchLoader(dataset, batch_size=4, buffer=6)
    assert path in str(caught.value)


@EXECUTED
def test_functions_that_cannot_be_pickled_are_told_by_name():
    lock = threading.Lock()
    for name in ("collate_fn", "worker_init_fn"):
        with pytest.raises(UnpicklableError, match=name):
            PrefetchLoader(DATASET, batch_size=4, num_workers=1, buffer=6, **{name: lambda _: lock})


class Locked(SequentialSampler):
    def __init__(self, size: int) -> None:
        super().__init__(range(size))
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"sampler": Locked(20), "batch_size": 4}, r"^sampler\.lock cannot .* \(in __iter__\)"),
        ({"sampler": Locked(20), "batch_size": None}, r"^sampler\.lock cannot"),
        ({"batch_sampler": BatchSampler(Locked(20), 4, False)}, r"^sampler\.lock cannot"),
        ({"batch_sampler": Holder(lock=threading.Lock())}, r"^batch_sampler\.lock cannot"),
        ({"sampler": _generator(), "batch_size": 4}, r"^sampler cannot"),
    ],
    ids=["sampler", "without batching", "batch sampler of torch", "batch sampler", "generator"],
)
@EXECUTED
def test_a_sampler_that_cannot_be_pickled_is_told_by_its_argument(arguments, named):
    with pytest.raises(UnpicklableError, match=named):
        PrefetchLoader(DATASET, buffer=6, **arguments)


@EXECUTED
def test_an_unpicklable_dataset_leaves_nothing_and_its_name_is_free(shared_daemon):
    # Programs of former tests go when nobody needs them.
    before = {name for name in shared_daemon.segments() if "-program-" not in name}
    for _ in range(3):
        with pytest.raises(UnpicklableError):
            PrefetchLoader(Holder(broken=threading.Lock()), batch_size=4, buffer=6, stream="unpicklable")
    with PrefetchLoader(Numbers(8), batch_size=4, buffer=6, stream="unpicklable") as loader:
        assert loader.stats()["stream"] == "unpicklable"
        assert len(list(loader)) == 2
    assert before <= set(shared_daemon.segments())


def test_lambdas_and_local_classes_are_fine():
    factor = 3

    class Local(Numbers):
        def __getitem__(self, index: int):
            return index * factor

    with PrefetchLoader(Local(4), batch_size=4, buffer=6) as loader:
        assert next(iter(loader)).tolist() == [0, 3, 6, 9]
    with PrefetchLoader(Made(lambda index: torch.tensor(index + factor), 4), batch_size=4, buffer=6) as loader:
        assert next(iter(loader)).tolist() == [3, 4, 5, 6]
