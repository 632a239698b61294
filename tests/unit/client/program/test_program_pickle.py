"""The trainer's program in another process: the same data, its __main__ included, and nothing copied needlessly."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import textwrap
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import posix_ipc
import pytest
import torch
from prefetchd_client.program import program_pickle
from prefetchd_client.program.program_pickle import (
    SMALLEST_BUFFER_BYTES,
    PickleTooLargeError,
    pickle_program,
    write_program,
)
from torch.utils.data import BatchSampler

from prefetchd.processes.environment import read_environment
from prefetchd.wire.errors import NoSpaceError, UnpicklableError
from prefetchd.wire.file_locks import is_locked
from prefetchd.wire.process_environment import PRELOADED, current_environment
from prefetchd.wire.program_layout import decode_environment, decode_program
from prefetchd.wire.runtime_paths import runtime_paths
from prefetchd.wire.segment_layout import DAEMON_LOCK_OFFSET
from prefetchd.workers.program import load_program
from tests.unit.workers.comparing import differences

REPOSITORY = Path(__file__).parents[3]
LARGE = SMALLEST_BUFFER_BYTES


@pytest.fixture
def paths(tmp_path):
    return runtime_paths(tmp_path / "d.sock")


@pytest.fixture
def handed_over(paths):
    """What a worker has of a dataset."""
    fds = []

    def hand_over(dataset: Any) -> Any:
        _, fd, _ = write_program(paths, current_environment(), *pickle_program({"dataset": dataset}))
        fds.append(fd)
        return load_program(fd).dataset

    yield hand_over
    for fd in fds:
        os.close(fd)


class Holder:
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


# --- what comes over ---


@pytest.mark.parametrize(
    "data",
    [
        [1, "two", None, {"three": (4.0,)}],
        np.arange(10),
        np.arange(LARGE),
        np.asfortranarray(np.arange(2.0 * LARGE).reshape(2, -1)),
        np.array(["cat", "dog"], dtype=object),
        torch.arange(10),
        torch.arange(LARGE),
        torch.arange(2 * LARGE).reshape(2, -1).t(),
        torch.arange(LARGE)[5:-5:2],
        torch.ones(LARGE, dtype=torch.bfloat16),
        torch.tensor([1.0, 2.0], requires_grad=True),
        torch.empty(0, 3),
        torch.tensor(1.5),
        torch.tensor([1 + 2j]).conj(),
        torch.nn.Parameter(torch.ones(3)),
        [torch.empty(0), torch.empty(0, dtype=torch.int64), np.empty(0)],
    ],
    ids=lambda data: f"{type(data).__name__} {str(data)[:25]}",
)
def test_data_arrives_as_it_was(handed_over, data):
    assert differences(handed_over(data), data) == []


def test_large_data_travels_beside_the_pickle():
    array, tensor = np.arange(LARGE), torch.arange(LARGE, dtype=torch.int16)
    small = np.arange(LARGE // 8 - 1)
    pickled, buffers = pickle_program({"dataset": [array, tensor, small]})
    assert [buffer.nbytes for buffer in buffers] == [array.nbytes, tensor.nbytes]
    assert small.nbytes < len(pickled) < 2 * small.nbytes


def test_views_of_one_tensor_travel_once_and_share_their_memory_again(handed_over):
    table = torch.zeros(LARGE)
    holder = Holder(table=table, head=table[:10], rows=table.view(-1, 2))
    assert len(pickle_program({"dataset": holder})[1]) == 1
    found = handed_over(holder)
    found.table[:] = 7
    assert found.head.tolist() == [7.0] * 10
    assert found.rows[0].tolist() == [7.0, 7.0]


def test_tensors_over_parts_of_one_array(handed_over):
    """They have storages of their own, of different lengths, that begin at the same address."""
    array = np.arange(float(LARGE))
    data = [torch.from_numpy(array[:10]), torch.from_numpy(array), torch.from_numpy(array[:20])]
    assert differences(handed_over(data), data) == []


def test_all_of_it_is_written_though_the_kernel_takes_but_a_part_at_once(handed_over, monkeypatch):
    """It takes 2 GiB, which is less than some datasets are."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:1000], offset))
    data = [np.arange(LARGE), torch.arange(LARGE)]
    assert differences(handed_over(data), data) == []


def test_what_a_worker_writes_stays_with_it(paths):
    _, fd, _ = write_program(paths, current_environment(), *pickle_program({"dataset": [np.zeros(LARGE)]}))
    one, other = load_program(fd).dataset, load_program(fd).dataset
    one[0][:] = 5
    assert not other[0].any()
    assert not load_program(fd).dataset[0].any()
    os.close(fd)
    assert one[0][3] == 5, "the memory lives as long as what was built on it"


def test_collate_fn_and_worker_init_fn_come_along(paths):
    parts = {"dataset": [1], "collate_fn": sum, "worker_init_fn": lambda place: place + 1}
    _, fd, _ = write_program(paths, current_environment(), *pickle_program(parts))
    program = load_program(fd)
    os.close(fd)
    assert program.collate_fn is sum
    assert program.worker_init_fn(1) == 2


# --- memory-mapped files ---


@pytest.fixture
def mapped_file(tmp_path):
    path = tmp_path / "tokens.bin"
    np.arange(LARGE, dtype=np.uint16).tofile(path)
    return path


@pytest.mark.parametrize(
    "look",
    [
        lambda data: data,
        lambda data: data[: LARGE // 2],
        lambda data: data[1000:2000:3],
        lambda data: data[::-1],
        lambda data: data.reshape(-1, 2).T,
        lambda data: data[10:][5:].view(np.uint8),
        lambda data: np.asarray(data)[3:],
    ],
    ids=["all", "half", "strided", "reversed", "transposed", "a view of a view", "as an array"],
)
def test_a_memory_mapped_array_is_mapped_again_and_not_copied(handed_over, mapped_file, look):
    data = look(np.memmap(mapped_file, dtype=np.uint16, mode="r", offset=16))
    pickled, buffers = pickle_program({"dataset": data})
    assert len(pickled) < 2000
    assert not buffers
    found = handed_over(data)
    assert type(found) is type(data)
    assert (found.dtype, found.shape, found.strides) == (data.dtype, data.shape, data.strides)
    assert np.array_equal(found, data)
    assert not found.flags.writeable


def test_a_worker_does_not_write_to_the_users_file(handed_over, mapped_file):
    before = mapped_file.read_bytes()
    for mode in ("r+", "c"):
        data = np.memmap(mapped_file, dtype=np.uint16, mode=mode)
        found = handed_over([data, data[5:]])
        found[0][:] = 0
        found[1][:] = 0
        assert mapped_file.read_bytes() == before


def test_what_a_file_does_not_show_is_copied(handed_over, mapped_file):
    """What the trainer wrote to a private map, and a file that is gone."""
    private = np.memmap(mapped_file, dtype=np.uint16, mode="c")
    private[:3] = 9
    unlinked = np.memmap(mapped_file, dtype=np.uint16, mode="r")
    expected = unlinked.copy()
    found = handed_over([private, private[1:]])
    assert [found[0][:4].tolist(), found[1][:3].tolist()] == [[9, 9, 9, 3], [9, 9, 3]]
    mapped_file.unlink()
    assert np.array_equal(handed_over(unlinked), expected)


def test_a_memory_mapped_array_of_several_dimensions(handed_over, tmp_path):
    for order in "CF":
        written = np.memmap(tmp_path / order, dtype=np.float32, mode="w+", shape=(3, 4), order=order)
        written[:] = np.arange(12).reshape(3, 4)
        written.flush()
        assert np.array_equal(handed_over(written), np.arange(12).reshape(3, 4))
    np.save(tmp_path / "saved.npy", np.arange(20.0))
    saved = np.load(tmp_path / "saved.npy", mmap_mode="r")
    assert np.array_equal(handed_over(saved), np.arange(20.0))


# --- generators and other things of the process ---


def test_the_global_generators_are_the_workers_own(handed_over):
    """Else `from random import randint` in a script would draw from a copy, which nobody seeds."""
    functions = [random.randint, random.random, np.random.randint, np.random.rand, torch.default_generator.initial_seed]
    found = handed_over([*functions, random._inst, np.random.mtrand._rand, torch.default_generator, os.environ])
    for mine, theirs in zip(functions, found):
        assert theirs.__self__ is mine.__self__
    assert found[len(functions) :] == [random._inst, np.random.mtrand._rand, torch.default_generator, os.environ]
    assert found[-1] is os.environ


def test_generators_of_the_datasets_own_keep_their_state(handed_over):
    own = [random.Random(5), np.random.RandomState(5), np.random.default_rng(5), torch.Generator().manual_seed(5)]
    found = handed_over(own)
    assert found[0].random() == own[0].random()
    assert found[1].rand() == own[1].rand()
    assert found[2].random() == own[2].random()
    assert torch.equal(torch.rand(3, generator=found[3]), torch.rand(3, generator=own[3]))


# --- __main__ ---

SCRIPT = """
import collections, dataclasses, os, sys
from random import randint
import numpy as np
import torch
from numpy.random import rand
from torch.utils.data import Dataset

SCALE = 3
Pair = collections.namedtuple("Pair", "left right")

@dataclasses.dataclass
class Options:
    flip: bool = True

class Base(Dataset):
    def __len__(self):
        return 10

class Images(Base):
    class Crop:
        class Corner:
            pass

    def __init__(self):
        self.options = Options()
        self.table = torch.arange(100_000)
        self.transforms = [lambda image: image * SCALE, helper]

    def __getitem__(self, index):
        image = self.table[index]
        for transform in self.transforms:
            image = transform(image)
        return Pair(image, (self.options, randint(0, 1 << 40), rand()))

def helper(image):
    return image + np.int64(OFFSET)

OFFSET = 7

if __name__ == "__main__":
    from prefetchd_client.program.program_pickle import pickle_program, write_program
    from prefetchd.wire.runtime_paths import runtime_paths
    from prefetchd.wire.process_environment import current_environment

    parts = {"dataset": Images(), "collate_fn": lambda samples: [Pair(*sample) for sample in samples]}
    _, fd, size = write_program(runtime_paths("/nowhere/d.sock"), current_environment(), *pickle_program(parts))
    with open(sys.argv[1], "wb") as file:
        file.write(os.pread(fd, size, 0))
"""


def test_a_script_s_own_classes_and_functions_work_in_another_process(tmp_path):
    """Which has no such module, and seeds its own generators."""
    script, program = tmp_path / "train.py", tmp_path / "program"
    script.write_text(textwrap.dedent(SCRIPT))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(REPOSITORY), *sys.path]))
    subprocess.run([sys.executable, str(script), str(program)], check=True, timeout=60, env=environment)
    with program.open("rb") as file:
        loaded = load_program(file.fileno())
        script_environment = read_environment(file.fileno())
    # A batch's objects are found again by it.
    assert type(loaded.dataset).Crop.Corner.__qualname__ == "Images.Crop.Corner"
    draws = []
    for _ in range(2):
        random.seed(4)
        np.random.seed(4)
        image, (options, *drawn) = loaded.dataset[5]
        assert (int(image), options.flip) == (5 * 3 + 7, True)
        draws.append(drawn)
    random.seed(4)
    np.random.seed(4)
    assert draws == [[random.randint(0, 1 << 40), np.random.rand()]] * 2
    assert type(loaded.dataset).__name__ == "Images"
    assert loaded.collate_fn([(1, 2)])[0]._fields == ("left", "right")
    assert script_environment.sys_path[0] == str(tmp_path)


# --- what does not come over ---


@pytest.mark.parametrize(
    ("parts", "batch_size", "named", "later"),
    [
        ({"dataset": threading.Lock()}, 4, "dataset", "at the first __getitem__"),
        ({"dataset": Holder(lock=threading.Lock())}, 4, "dataset.lock", "at the first __getitem__"),
        (
            {"dataset": Holder(fine=1, files={"a": [0, threading.Lock()]})},
            4,
            "dataset.files['a'][1]",
            "at the first __getitem__",
        ),
        (
            {"dataset": Holder(inner=Holder(inner=Holder(stream=(x for x in ()))))},
            4,
            "dataset.inner.inner.stream",
            "at the first __getitem__",
        ),
        ({"dataset": [1], "collate_fn": Holder(socket=threading.Lock())}, 4, "collate_fn.socket", "at the first call"),
        ({"dataset": [1], "worker_init_fn": (x for x in ())}, 4, "worker_init_fn", "at the first call"),
        (
            {"dataset": [1], "index_sampler": BatchSampler(Holder(lock=threading.Lock()), 4, False)},
            4,
            "sampler.lock",
            "in __iter__",
        ),
        ({"dataset": [1], "index_sampler": Holder(lock=threading.Lock())}, 0, "sampler.lock", "in __iter__"),
        ({"dataset": [1], "index_sampler": Holder(lock=threading.Lock())}, -1, "batch_sampler.lock", "in __iter__"),
        ({"dataset": [1], "index_sampler": (x for x in ())}, 0, "sampler", "in __iter__"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_attribute_that_cannot_be_pickled_is_named(parts, batch_size, named, later):
    with pytest.raises(UnpicklableError, match="cannot be handed to the workers") as caught:
        pickle_program(parts, batch_size)
    text = str(caught.value)
    assert text.startswith(f"{named} cannot")
    assert "TypeError: cannot pickle" in text
    assert text.endswith(f"Create it lazily ({later}), or leave it out in __getstate__")
    assert isinstance(caught.value.__cause__, TypeError)


def test_one_that_is_buried_deep_is_named_as_far_as_it_was_looked_for():
    deep = Holder(lock=threading.Lock())
    for _ in range(8):
        deep = Holder(inner=deep)
    with pytest.raises(UnpicklableError, match=r"^dataset\.inner\.inner\.inner\.inner cannot"):
        pickle_program({"dataset": deep})


def test_finding_the_culprit_copies_no_data():
    """A dataset that does not pickle may be larger than memory."""
    data = np.zeros(64 << 20, np.uint8)
    tracemalloc.start()
    try:
        with pytest.raises(UnpicklableError, match=r"^dataset\.lock cannot"):
            pickle_program({"dataset": Holder(data=data, text="x" * 1000, lock=threading.Lock())})
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_an_exception_of_the_users_getstate_is_told(monkeypatch):
    class Refusing:
        def __getstate__(self):
            raise RuntimeError("not today")

    with pytest.raises(UnpicklableError, match=r"dataset\[0\] cannot .* RuntimeError: not today"):
        pickle_program({"dataset": [Refusing()]})


# --- the segment ---


@pytest.fixture(params=["unnamed", "named"])
def naming(request, monkeypatch):
    """Whether the file system has files without a name, as ours does."""
    if request.param == "named":

        def unsupported() -> int:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

        monkeypatch.setattr(program_pickle, "open_unnamed", unsupported)
    return request.param


def names(paths) -> list[str]:
    prefix = paths.segment_name("program", "").removeprefix("/")
    return ["/" + name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


def test_the_segment_is_private_locked_and_laid_out_as_told(paths, naming):
    pickled, buffers = pickle_program({"dataset": [np.arange(LARGE), np.arange(2 * LARGE)]})
    name, fd, size = write_program(paths, current_environment(), pickled, buffers)
    try:
        assert name.startswith(paths.segment_name("program", ""))
        assert names(paths) == ([name] if naming == "named" else [])
        found = os.fstat(fd)
        assert (found.st_mode & 0o777, found.st_size, found.st_nlink) == (0o600, size, naming == "named")
        with open(f"/proc/self/fd/{fd}", "rb") as file:
            assert is_locked(file.fileno(), DAEMON_LOCK_OFFSET), "its writer lives"
            layout = decode_program(memoryview(file.read()))
        assert layout.pickle_bytes == len(pickled)
        assert layout.buffer_sizes == (LARGE * 8, LARGE * 16)
    finally:
        os.close(fd)
        for left in names(paths):
            posix_ipc.unlink_shared_memory(left)


def test_a_file_system_that_refuses_for_another_reason_is_asked_once(paths, monkeypatch):
    def refused() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(program_pickle, "open_unnamed", refused)
    with pytest.raises(OSError, match="Too many open files"):
        write_program(paths, current_environment(), b"", [])
    assert names(paths) == []


@pytest.mark.usefixtures("naming")
def test_no_room_is_told_with_its_size_and_leaves_nothing(paths, monkeypatch):
    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(NoSpaceError, match=r"dataset takes 1 MiB .*No space left on device.*enlarge /dev/shm"):
        write_program(paths, current_environment(), bytes(1 << 20), [])
    assert names(paths) == []
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_the_environment_is_this_process_s(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", ["", "relative", "/absolute"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KNOB", "a\udcffb")
    found = current_environment()
    assert found.sys_path == (str(tmp_path), str(tmp_path / "relative"), "/absolute")
    assert found.directory == os.fsencode(tmp_path)
    assert found.variables[b"KNOB"] == b"a\xffb"
    assert found.executable == os.fsencode(sys.executable)
    assert set(found.preload) <= set(PRELOADED)
    assert {"numpy", "torch"} <= set(found.preload)
    from prefetchd.wire.program_layout import encode_environment

    assert decode_environment(encode_environment(found)) == found


# --- a bound on the pickle ---


@pytest.mark.parametrize(
    "data",
    [
        pytest.param([f"{each:0100}" for each in range(200_000)], id="many texts"),
        pytest.param([bytes(20 << 20)], id="a long one"),
    ],
)
def test_a_pickle_that_is_too_long_is_not_made(data):
    """Found as a process that took 335 MB to find out that a program is too large to be written for nothing."""
    tracemalloc.start()
    try:
        with pytest.raises(PickleTooLargeError) as caught:
            pickle_program({"dataset": data}, most_bytes=1 << 20)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert caught.value.pickled_bytes > 1 << 20
    assert peak_bytes < 4 << 20


def test_the_bound_is_for_what_is_written_and_not_for_what_lies_beside_it():
    pickled, buffers = pickle_program({"dataset": np.zeros(4 << 20, np.uint8)}, most_bytes=1 << 20)
    assert len(pickled) < 1 << 20
    assert [each.nbytes for each in buffers] == [4 << 20]


def test_what_cannot_be_pickled_is_told_however_large_its_arrays_are():
    with pytest.raises(UnpicklableError, match=r"dataset\.lock"):
        pickle_program({"dataset": Holder(array=np.zeros(4 << 20), lock=threading.Lock())}, most_bytes=1 << 20)
