"""Samples that one worker has loaded for another: whose row it is, what counts, what survives."""

from __future__ import annotations

import collections
import dataclasses
import os
import threading
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from prefetchd.supervisor.worker_status_file import WorkerStatusFile
from prefetchd.wire.worker_status import NO_WORKER_STATUS, STACK_OFFSET
from prefetchd.workers import sample_codec
from prefetchd.workers.sample_codec import UnshareableError, decode_sample, encode_sample
from prefetchd.workers.shared_samples import SharedSamples
from prefetchd.workers.worker_status_writer import map_worker_status
from tests.unit.workers.comparing import differences


@pytest.fixture
def status():
    file = WorkerStatusFile()
    yield file
    file.close()


@pytest.fixture
def shared(status):
    """Makes one process's end."""
    made = []

    def make() -> SharedSamples:
        made.append(SharedSamples(status.fd))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_row_is_one_process_s_at_a_time(shared):
    one, other = shared(), shared()
    assert one.claim(3)
    assert not other.claim(3)
    assert other.claim(4)
    one.release(3)
    assert other.claim(3)


def test_rows_of_a_process_that_is_gone_are_free(shared):
    one, other = shared(), shared()
    assert one.claim(3)
    one.close()
    assert other.claim(3)


def test_who_waits_for_a_row_gets_it_when_it_is_given_up(shared):
    one, other = shared(), shared()
    assert one.claim(0)
    waiting = threading.Thread(target=other.wait, args=(0,))
    waiting.start()
    assert waiting.is_alive()
    one.release(0)
    waiting.join()
    assert not one.claim(0)


def test_what_is_put_for_a_task_is_there_for_that_task_alone(shared):
    one, other = shared(), shared()
    one.put(2, 7, [b"ab", memoryview(b"cd")])
    assert other.get(2, 7) == bytearray(b"abcd")
    assert other.has(2, 7)
    assert other.get(2, 8) is None
    assert not other.has(2, 8)
    assert other.get(1, 7) is None
    one.put(2, 8, [b"x"])
    assert (other.get(2, 7), other.get(2, 8)) == (None, bytearray(b"x"))


def test_what_is_cleared_or_cut_short_is_not_there(shared, status):
    one, other = shared(), shared()
    one.put(2, 7, [b"abcd"])
    before = os.stat(f"/proc/self/fd/{status.fd}").st_blocks
    other.clear()
    assert one.get(2, 7) is None
    assert os.stat(f"/proc/self/fd/{status.fd}").st_blocks < before
    one.put(2, 7, [b"abcd"])
    os.ftruncate(status.fd, STACK_OFFSET)
    assert one.get(2, 7) is None


def test_what_the_owner_is_at_is_what_its_status_says(shared, status):
    map_worker_status(status.fd).begin(41)
    assert shared().owner() == status.read()
    assert shared().owner().task == 41
    os.ftruncate(status.fd, 8)
    assert shared().owner() == NO_WORKER_STATUS


def test_the_status_is_left_alone(shared, status):
    writer = map_worker_status(status.fd)
    writer.begin(5)
    one = shared()
    one.put(0, 5, [b"abcd"])
    one.clear()
    assert status.read().task == 5


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass
class Picture:
    pixels: torch.Tensor
    name: str


BASE = torch.arange(1000.0)
MISSING = object()
SAMPLES = {
    "a tensor": torch.arange(6.0).reshape(2, 3),
    "with strides": torch.arange(6.0).reshape(2, 3).t(),
    "every other one": torch.arange(10)[::2],
    "nothing in it": torch.empty(0, 3),
    "one number": torch.tensor(3.5),
    "half precision": torch.ones(3, dtype=torch.bfloat16),
    "a row of many": BASE[7:9],
    "two that share": (BASE[0:4], BASE[2:6]),
    "an array": np.arange(6, dtype=np.int16).reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "an array of text": np.array(["a", "bc"]),
    "read only": np.frombuffer(b"abcd", dtype=np.uint8),
    "a structure": {"a": [1, 2.5, "x", None], "b": (torch.ones(2), np.float32(3))},
    "a named tuple": Point(torch.zeros(1), [Point(1, 2)]),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_comes_as_it_was(name):
    sample = SAMPLES[name]
    data = bytearray(b"".join(encode_sample(sample)))
    found = decode_sample(data)
    assert differences(found, sample) == []


def test_of_a_large_storage_only_what_is_seen_is_carried():
    assert sum(len(memoryview(each).cast("B")) for each in encode_sample(torch.arange(1_000_000)[5:9])) < 1000


def test_arrays_own_their_memory():
    found = decode_sample(bytearray(b"".join(encode_sample(np.arange(4)))))
    assert found.flags.owndata
    found.resize(8)


def test_tensors_that_share_a_storage_do_so_afterwards():
    left, right = decode_sample(bytearray(b"".join(encode_sample((BASE[0:4], BASE[2:6])))))
    left[2] = -1.0
    assert right[0] == -1.0
    assert BASE[2] == 2.0


@pytest.mark.parametrize(
    "sample",
    [
        lambda: 1,
        np.arange(12).reshape(3, 4)[:, ::2],
        torch.ones(2).untyped_storage(),
        threading.Lock(),
        torch.ones(2, requires_grad=True),
        MISSING,
        [Picture(torch.ones(2, 2), "cat")],
        {"tags": {"b", "a"}},
        collections.Counter("ab"),
    ],
    ids=[
        "a function",
        "an array with gaps",
        "a storage",
        "a lock",
        "with a gradient",
        "an object that stands for itself",
        "a class",
        "a set",
        "a subclass of a plain one",
    ],
)
def test_what_cannot_be_carried_as_it_is_is_not_carried(sample):
    """A collate_fn that asked `each is not MISSING` found another object there, of the same class."""
    with pytest.raises(UnshareableError):
        encode_sample(sample)


def test_what_is_too_large_is_not_carried(monkeypatch):
    monkeypatch.setattr(sample_codec, "MOST_SAMPLE_BYTES", 1000)
    with pytest.raises(UnshareableError, match="more than 1000 bytes"):
        encode_sample(torch.zeros(1000))
