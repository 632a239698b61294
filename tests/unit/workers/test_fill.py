"""A stream's batches by rows and whole: what is made once, what is kept, and where the user's code raised."""

from __future__ import annotations

import ctypes
import gc
import random
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from prefetchd_client.batches.tensors import BatchReader
from prefetchd_client.session.remote_errors import rebuild_exception
from torch.utils.data import Subset, default_collate

from prefetchd.wire.errors import CallerError
from prefetchd.wire.remote_exception import encode_exception
from prefetchd.wire.segment_layout import ROW_LAYOUT_LIMIT_BYTES
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.fill import KEPT_FOR_TASKS, Filler
from prefetchd.workers.program import Program
from prefetchd.workers.row_leaves import Deviation
from prefetchd.workers.user_code import UserCodeError, load_failed, remote_exception
from tests.scenario.oracle import BATCH, GAMMA, SAMPLE, derive, finalise, seed_all
from tests.unit.workers.comparing import differences

LENGTH = 22


class Recorded:
    """Item i is make(i); `asked` are the indices that it was asked for, in order."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make
        self.asked: list[int] = []

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        return self.make(index)


def filler(dataset: Any, collate_fn: Any = None, worker_init_fn: Any = None, **options: Any) -> Filler:
    fields = {"seed": 5, "order": "sequential", "length": LENGTH, "batch_size": 4} | options
    return Filler(StreamSpec("0" * 32, **fields), Program(dataset, collate_fn, worker_init_fn))


def memory(size: int) -> Any:
    return (ctypes.c_ubyte * size)()


def whole(made: Filler, step: int, rows: int = 4, room: int = 1 << 16) -> Any:
    target = memory(room)
    assert made.fill_whole((0, step), rows, room, lambda: target) <= room
    return BatchReader().read(target)


def numbered(index: int) -> Any:
    return torch.full((2,), index), index


# --- by rows ---


def test_the_first_sample_is_enough_to_measure_and_is_not_made_again():
    dataset = Recorded(numbered)
    made = filler(dataset)
    measured = made.measure((0, 2), 4)
    assert dataset.asked == [8]
    made.use_layout(measured.layout)
    target = memory(measured.payload_bytes)
    assert made.fill_rows((0, 2), 0, 3, target) == measured.payload_bytes
    assert made.fill_rows((0, 2), 3, 4, target) == measured.payload_bytes
    assert dataset.asked == [8, 9, 10, 11]
    assert differences(BatchReader().read(target), default_collate([numbered(k) for k in range(8, 12)])) == []


def test_a_kept_sample_is_for_its_own_position_only():
    dataset = Recorded(numbered)
    made = filler(dataset)
    measured = made.measure((0, 2), 4)
    made.use_layout(measured.layout)
    target = memory(measured.payload_bytes)
    made.fill_rows((0, 1), 0, 4, target)
    made.fill_rows((0, 2), 0, 4, target)
    made.fill_rows((1, 2), 0, 4, target)
    assert dataset.asked == [8, 4, 5, 6, 7, 8, 9, 10, 11, 8, 9, 10, 11]
    assert BatchReader().read(target)[1].tolist() == [8, 9, 10, 11]


def test_rows_of_another_worker_are_left_alone():
    made = filler(Recorded(numbered))
    measured = made.measure((0, 0), 4)
    made.use_layout(measured.layout)
    target = memory(measured.payload_bytes)
    for at in range(measured.payload_bytes):
        target[at] = 0xEE
    made.fill_rows((0, 1), 1, 3, target)
    storages = made._layout.meta.storages
    for entry, row_bytes in zip(storages, (16, 8)):
        rows = bytes(target[entry.offset : entry.offset + entry.storage_bytes])
        assert rows[:row_bytes] == rows[3 * row_bytes :] == b"\xee" * row_bytes
        assert b"\xee" not in rows[row_bytes : 3 * row_bytes]
    assert bytes(target[: storages[0].offset]) == b"\xee" * storages[0].offset, "the meta is row 0's"


def test_the_last_batch_is_short_and_says_so():
    made = filler(Recorded(numbered))
    measured = made.measure((0, 0), 4)
    made.use_layout(measured.layout)
    target = memory(measured.payload_bytes)
    written = made.fill_rows((0, 5), 0, 2, target)
    assert written <= measured.payload_bytes
    assert differences(BatchReader().read(target), default_collate([numbered(20), numbered(21)])) == []


def test_a_deviating_row_is_no_error_of_the_user_s():
    made = filler(Recorded(lambda index: torch.ones(3 if index == 6 else 2)))
    measured = made.measure((0, 0), 4)
    made.use_layout(measured.layout)
    with pytest.raises(Deviation):
        made.fill_rows((0, 1), 0, 4, memory(measured.payload_bytes))
    made.fill_rows((0, 2), 0, 4, memory(measured.payload_bytes))


def test_a_worker_that_sees_a_deviating_sample_first_waits_for_one_that_fits():
    measured = filler(Recorded(numbered)).measure((0, 0), 4)
    made = filler(Recorded(lambda index: "odd" if index == 4 else numbered(index)))
    made.use_layout(measured.layout)
    with pytest.raises(Deviation):
        made.fill_rows((0, 1), 0, 4, memory(measured.payload_bytes))
    target = memory(measured.payload_bytes)
    made.fill_rows((0, 2), 0, 4, target)
    assert BatchReader().read(target)[1].tolist() == [8, 9, 10, 11]
    other = filler(Recorded(lambda index: (torch.full((3,), index), index)))
    other.use_layout(measured.layout)
    with pytest.raises(Deviation, match="signature"):
        other.fill_rows((0, 2), 0, 4, target)


def test_a_layout_too_long_for_the_segment_is_not_used():
    many = {f"a rather long name of a key {k}": k for k in range(ROW_LAYOUT_LIMIT_BYTES // 40)}
    dataset = Recorded(lambda index: many)
    measured = filler(dataset).measure((0, 0), 4)
    assert measured.layout == b""
    assert dataset.asked == [0, 1, 2, 3], "sample 0 was kept while it was found out"


# --- rows that the dataset copies itself ---


class Copying(Recorded):
    """Copies rows itself, but for those that it lacks, which alone may be asked for; `copied` are the indices of each
    call."""

    def __init__(self, *lacking: int) -> None:
        super().__init__(numbered)
        self.lacking = lacking
        self.copied: list[list[int]] = []

    def __getitem__(self, index: int) -> Any:
        assert index in self.lacking, "it would have been copied"
        return super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[Any]:
        raise AssertionError("rows are copied, not made all at once")

    def gather_into(self, indices: list[int], targets: list[torch.Tensor]) -> list[int]:
        self.copied.append(list(indices))
        assert [(len(target), target.dtype) for target in targets] == [(len(indices), torch.int64)] * 2
        for place, index in enumerate(indices):
            if index not in self.lacking:
                targets[0][place] = index
                targets[1][place] = index
        return [place for place, index in enumerate(indices) if index in self.lacking]


class Otherwise(Copying):
    """Its samples are others than those that the class below it copies."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(-index), -index

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


class Delegating:
    """Passes everything on but its samples."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(-index), -index


@pytest.mark.parametrize("dataset", [Otherwise(), Delegating(Copying())], ids=["subclass", "wrapper"])
def test_what_copies_rows_is_not_asked_by_who_has_other_samples(dataset):
    """Found as augmentations that a subclass of SampleCache made, and nobody saw."""
    found = whole(filler(dataset), 2)
    assert differences(found, default_collate([(torch.tensor(-k), -k) for k in range(8, 12)])) == []


def copied(dataset: Any, *parts: tuple[int, int]) -> Any:
    """The batch of step 2, of which each part of rows was filled by itself."""
    measured = filler(Recorded(numbered)).measure((0, 0), 4)
    made = filler(dataset)
    made.use_layout(measured.layout)
    target = memory(measured.payload_bytes)
    for first, end in parts:
        made.fill_rows((0, 2), first, end, target)
    return BatchReader().read(target)


class CopyingNothing(Recorded):
    """Copies rows of which one leaf has no size."""

    def __init__(self) -> None:
        super().__init__(lambda index: (torch.tensor(index), torch.empty(0, 3)))

    def gather_into(self, indices: list[int], targets: list[torch.Tensor]) -> list[int]:
        assert [tuple(target.shape) for target in targets] == [(len(indices),), (len(indices), 0, 3)]
        targets[0].copy_(torch.tensor(indices))
        return []


def test_rows_of_no_size_are_copied_too():
    dataset = CopyingNothing()
    measured = filler(dataset).measure((0, 0), 4)
    made = filler(dataset)
    made.use_layout(measured.layout)
    target = memory(measured.payload_bytes)
    made.fill_rows((0, 2), 0, 4, target)
    assert differences(BatchReader().read(target), default_collate([dataset[k] for k in range(8, 12)])) == []


def test_rows_are_copied_by_the_dataset_each_part_by_itself():
    dataset = Copying()
    found = copied(dataset, (0, 3), (3, 4))
    assert differences(found, default_collate([numbered(k) for k in range(8, 12)])) == []
    assert dataset.copied == [[8, 9, 10], [11]]


@pytest.mark.parametrize("lacking", [(9, 10), (8, 11), (8, 9, 10, 11)])
def test_samples_that_cannot_be_copied_are_made_and_no_others(lacking):
    dataset = Copying(*lacking)
    found = copied(dataset, (0, 1), (1, 4))
    assert differences(found, default_collate([numbered(k) for k in range(8, 12)])) == []
    assert dataset.asked == list(lacking)
    assert dataset.copied == [[8], [9, 10, 11]]


def test_a_subset_is_copied_by_its_dataset():
    dataset = Copying()
    found = copied(Subset(Subset(dataset, range(50, 100)), range(LENGTH - 1, -1, -1)), (0, 2), (2, 4))
    assert differences(found, default_collate([numbered(k) for k in range(63, 59, -1)])) == []
    assert dataset.copied == [[63, 62], [61, 60]]


def test_a_batch_whose_rows_can_be_copied_is_measured_by_one_sample():
    dataset = Copying(0)
    assert filler(dataset).measure((0, 0), 4).layout
    assert dataset.asked == [0]


# --- whole ---


def test_a_measured_batch_is_kept_for_its_own_position_only():
    dataset = Recorded(str)
    made = filler(dataset)
    made.measure((0, 0), 4)
    assert whole(made, 1) == ["4", "5", "6", "7"]
    assert whole(made, 0) == ["0", "1", "2", "3"]
    assert dataset.asked == [0, 1, 2, 3, 4, 5, 6, 7], "each of them once"


def test_a_batch_that_does_not_fit_is_kept_and_nothing_is_written():
    dataset = Recorded(lambda index: str(index) * 100)
    made = filler(dataset)

    def unwanted() -> Any:
        raise AssertionError("there is no room to write to")

    needed = made.fill_whole((0, 1), 4, 64, unwanted)
    assert needed > 400
    assert made.fill_whole((0, 1), 4, needed - 1, unwanted) == needed
    assert whole(made, 1, room=needed) == [str(index) * 100 for index in range(4, 8)]
    assert dataset.asked == [4, 5, 6, 7]
    whole(made, 1)
    assert dataset.asked == [4, 5, 6, 7] * 2, "what was written is not kept"


def test_batches_that_wait_for_room_are_kept_side_by_side():
    dataset = Recorded(lambda index: str(index) * 100)
    made = filler(dataset)
    for step in (0, 1, 2):
        assert made.fill_whole((0, step), 4, 64, memory) > 64
    assert whole(made, 3)[0] == "12" * 100
    for step in (1, 0, 2):
        assert whole(made, step)[0] == str(4 * step) * 100
    assert dataset.asked == list(range(16)), "each of them once"


def test_a_kept_batch_that_nobody_asks_for_is_let_go():
    made = filler(Recorded(lambda index: str(index) * 100))
    made.fill_whole((0, 0), 4, 64, memory)
    kept = made._kept._kept[(0, 0), b""][1]
    gone = weakref.ref(kept)
    del kept
    for epoch in range(1, KEPT_FOR_TASKS + 1):
        made.fill_whole((epoch, 1), 4, 1 << 16, lambda: memory(1 << 16))
        assert gone() is not None
    made.fill_whole((0, 1), 4, 1 << 16, lambda: memory(1 << 16))
    assert gone() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda index: "text" * 1000 + str(index),
        lambda index: (np.full(1000, index), bytearray(1000)),
        lambda index: torch.full((1000,), index),
        lambda index: torch.zeros(index % 3 + 1),
    ],
    ids=["text", "arrays", "tensors", "ragged"],
)
def test_a_written_batch_is_let_go_without_the_garbage_collector(make):
    """Cycles would keep a hundred batches of large strings in a worker until the collector comes round."""
    made = filler([make(index) for index in range(24)], collate_fn=list)
    kind = type(memory(1 << 16))  # ctypes makes one kind of array for a length, which is a cycle of its own
    whole(made, 0)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        for step in range(1, 6):
            whole(made, step)
        gc.collect()
        # Threads of the tests' own runner may have left something meanwhile.
        ours = [
            each for each in gc.garbage if type(each).__module__.partition(".")[0] in ("prefetchd", "torch", "numpy")
        ]
        assert not ours, kind
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_without_batches_samples_come_as_they_are():
    made = filler(Recorded(lambda index: [index, str(index)]), batch_size=0)
    assert made.measure((0, 3), 1).layout == b""
    assert whole(made, 3, rows=1) == [3, "3"]
    assert made.batch((0, 7)) == [7, "7"]


class Gathering(Recorded):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        assert all(type(index) is int for index in indices)
        self.asked.append(indices)
        return [self.make(index) for index in indices]


def test_getitems_makes_a_batch_s_samples_at_once():
    dataset = Gathering(numbered)
    made = filler(dataset)
    assert made.measure((0, 0), 4).layout == b""
    assert differences(whole(made, 5, rows=2), default_collate([numbered(20), numbered(21)])) == []
    assert dataset.asked == [[0, 1, 2, 3], [20, 21]]
    assert made.batch((0, 5))[1].tolist() == [20, 21]


def test_a_collate_fn_that_is_default_collate_changes_nothing():
    measured = filler(Recorded(numbered), collate_fn=default_collate).measure((0, 0), 4)
    assert measured == filler(Recorded(numbered)).measure((0, 0), 4)


# --- seeds ---


@pytest.mark.parametrize("options", [{}, {"rank": 1, "world_size": 2}])
def test_collate_fn_and_getitems_are_seeded_by_the_batch(options):
    def expected(epoch: int, step: int) -> float:
        rank = options.get("rank", 0)
        seed_all(finalise((derive(5, BATCH, epoch, step) ^ rank) + GAMMA) >> 1)
        return torch.rand(()).item()

    made = filler(Recorded(lambda index: torch.rand(())), collate_fn=lambda _: torch.rand(()).item(), **options)
    assert made.batch((3, 2)) == expected(3, 2)
    gathering = Gathering(lambda index: index)
    gathering.__class__ = type("Drawing", (Gathering,), {"__getitems__": lambda self, _: [torch.rand(()).item()]})
    made = filler(gathering, collate_fn=lambda samples: samples, **options)
    assert made.batch((3, 1)) == [expected(3, 1)]


def test_samples_are_seeded_by_their_ordinals():
    made = filler(Recorded(lambda index: torch.rand(())), collate_fn=lambda samples: samples, rank=1, world_size=2)
    found = made.batch((4, 1))
    for place, value in enumerate(found):
        seed_all(derive(5, SAMPLE, 4, 2 * (4 + place) + 1) >> 1)
        assert value == torch.rand(())


# --- where the user's code raised ---


def raising(*_: Any) -> Any:
    raise LookupError("missing")


class RaisingGatherer(Recorded):
    __getitems__ = raising


@pytest.mark.parametrize(
    ("made", "place"),
    [
        (lambda: filler(Recorded(raising)), "dataset[8], epoch 1, step 2"),
        (lambda: filler(RaisingGatherer(numbered)), "dataset.__getitems__, epoch 1, step 2"),
        (lambda: filler(Recorded(numbered), collate_fn=raising), "collate_fn, epoch 1, step 2"),
        (lambda: filler(Recorded(numbered), collate_fn=lambda _: Unpicklable()), "pickling the batch, epoch 1, step 2"),
    ],
    ids=["dataset", "__getitems__", "collate_fn", "pickle"],
)
def test_the_place_where_it_raised_is_told(made, place):
    for act in (
        lambda it: it.measure((1, 2), 4),
        lambda it: it.fill_whole((1, 2), 4, 1 << 16, lambda: memory(1 << 16)),
    ):
        with pytest.raises(UserCodeError) as caught:
            act(made())
        assert caught.value.location == place
        assert type(caught.value.__cause__) is LookupError


def test_a_copy_that_raised_is_told_as_such():
    dataset = Copying()
    dataset.gather_into = raising
    with pytest.raises(UserCodeError) as caught:
        copied(dataset, (0, 4))
    assert caught.value.location == "dataset.gather_into, epoch 0, step 2"
    assert type(caught.value.__cause__) is LookupError


class Unpicklable:
    def __reduce__(self) -> Any:
        raise LookupError("missing")


def test_default_collate_s_own_errors_are_the_collate_fn_s():
    made = filler(Recorded(lambda index: torch.ones(index)))
    with pytest.raises(UserCodeError, match="collate_fn") as caught:
        whole(made, 1)
    assert "stack expects each tensor to be equal size" in str(caught.value.__cause__)


def test_errors_of_our_own_kind_that_the_user_s_code_raises_are_the_user_s():
    def collate(samples: Any) -> Any:
        raise CallerError("raised by a loader that collate_fn uses")

    with pytest.raises(UserCodeError) as caught:
        filler(Recorded(numbered), collate_fn=collate).batch((0, 0))
    assert type(caught.value.__cause__) is CallerError


def test_worker_init_fn_is_called_with_the_worker_s_place():
    called: list[int] = []
    filler([], worker_init_fn=called.append).init_worker(3)
    assert called == [3]
    drawn: list[tuple[Any, ...]] = []

    def draw(place: int) -> None:
        drawn.append((torch.initial_seed(), torch.rand(()).item(), np.random.rand(), random.random()))

    for place in (0, 1, 1):
        torch.manual_seed(3)
        filler([], worker_init_fn=draw).init_worker(place)
    assert drawn[1] == drawn[2]
    assert all(one != other for one, other in zip(drawn[0], drawn[1])), "workers do not draw alike"
    with pytest.raises(UserCodeError) as caught:
        filler([], worker_init_fn=raising).init_worker(2)
    told = load_failed(caught.value)
    assert told.message == "worker_init_fn(2): LookupError: missing"
    assert type(rebuild_exception(told.error)) is LookupError


def user_code_error(error: Exception) -> UserCodeError:
    try:
        raise UserCodeError("dataset[3]") from error
    except UserCodeError as raised:
        return raised


def test_an_exception_travels_with_its_text_place_and_traceback():
    with pytest.raises(UserCodeError) as caught:
        filler(Recorded(raising)).batch((0, 1))
    told = remote_exception(caught.value)
    assert (told.type_name, told.message, told.location) == ("LookupError", "missing", "dataset[4], epoch 0, step 1")
    assert "in raising" in told.traceback
    assert "LookupError: missing" in told.traceback
    assert told.pickled


class AboutAFile(OSError):  # noqa: N818
    def __init__(self, path: str) -> None:
        super().__init__(2, "No such shard", path)
        self.path = path


class ByParts(Exception):  # noqa: N818
    """Pickled as a call of its constructor, which makes the text of two parts."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}")

    def __reduce__(self) -> Any:
        return ByParts, tuple(str(self).split(":"))


class InSlots(ModuleNotFoundError):  # noqa: N818
    """Keeps one thing where ImportError keeps its own, and has nothing in another slot."""

    __slots__ = ("empty", "hint")

    def __init__(self, package: str) -> None:
        super().__init__(f"install {package}", name=package, path="/lib")
        self.hint = [package]


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(2, "No such file or directory", "a.png"),
        PermissionError(13, "Permission denied", "a.png", None, "b.png"),
        ImportError("cannot load", name="codec", path="/lib/codec.so"),
        AttributeError("no such attribute", name="shape", obj=lambda: "cannot be pickled, or is the whole dataset"),
        NameError("not defined", name="image"),
        InSlots("codec"),
        np.exceptions.AxisError(7, 1),
        OSError("the object store does not answer"),
        AboutAFile("a.tar"),
        ByParts("a.csv", 12),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_comes_back_with_what_it_keeps_outside_of_its_arguments(error):
    rebuilt = rebuild_exception(encode_exception(remote_exception(user_code_error(error))))
    assert type(rebuilt) is type(error)
    assert str(rebuilt) == str(error)
    assert vars(rebuilt) == vars(error)
    for name in ("errno", "strerror", "filename", "filename2", "name", "path", "hint", "axis", "ndim"):
        assert getattr(rebuilt, name, None) == getattr(error, name, None)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there are no exception groups yet")
def test_an_exception_group_comes_back_with_its_exceptions():
    error = ExceptionGroup("two", [ValueError("a"), KeyError("b")])  # noqa: F821
    rebuilt = rebuild_exception(encode_exception(remote_exception(user_code_error(error))))
    assert repr(rebuilt) == repr(error)


class WithoutText(Exception):  # noqa: N818
    def __str__(self) -> str:
        raise RuntimeError("no text")


class WithoutNotes(Exception):  # noqa: N818
    @property
    def __notes__(self) -> Any:
        raise RuntimeError("no notes")


class Huge(Exception):  # noqa: N818
    pass


def without_notes(index: int) -> Any:
    raise WithoutNotes("whatever traceback.py asks it for")


def test_exceptions_that_resist_travel_all_the_same():
    told = remote_exception(user_code_error(WithoutText()))
    assert told.type_name == "WithoutText"
    assert told.message
    assert type(rebuild_exception(encode_exception(told))) is WithoutText
    with pytest.raises(UserCodeError) as caught:
        filler(Recorded(without_notes)).batch((0, 1))
    told = remote_exception(caught.value)
    assert (told.type_name, told.message) == ("WithoutNotes", "whatever traceback.py asks it for")
    assert "in without_notes" in told.traceback
    assert remote_exception(user_code_error(Huge("x" * 100_000))).pickled == b""
    assert remote_exception(user_code_error(Huge(lambda: 1))).pickled == b""
    long = load_failed(user_code_error(Huge("x" * 100_000)))
    assert len(long.message) <= 2000
    assert len(long.error) < 60_000
