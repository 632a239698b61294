"""What a sample cache keeps of a sample: types and values, whatever its structure; and what it refuses."""

from __future__ import annotations

import errno
import os
import pickle
import random
from collections import namedtuple

import numpy as np
import pytest
import torch
from prefetchd_client import SampleCache
from prefetchd_client.fingerprint.walk import fingerprint
from prefetchd_client.sample_cache import dataset as caching
from prefetchd_client.sample_cache.own_randomness import OwnRandomness
from torch.utils.data import Dataset, IterableDataset, TensorDataset, default_collate

from prefetchd.wire.cache_directory import MARKS, ROW_LOCK_OFFSET
from prefetchd.wire.errors import CallerError, ProtocolError
from prefetchd.wire.file_locks import try_lock

pytest.importorskip("tensordict")
Point = namedtuple("Point", ["x", "y"])


class Listed(Dataset):
    def __init__(self, samples):
        self.samples = samples
        self.asked = []

    def __getstate__(self):
        return {"samples": self.samples, "asked": []}

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        self.asked.append(index)
        return self.samples[index]


SAMPLES = {
    "a tensor": torch.arange(6).view(2, 3),
    "a pair": (torch.rand(3), 5),
    "numbers": [1, 2.5, True],
    "a dict": {"image": np.arange(4, dtype=np.int16), "inner": {"flag": False, "at": np.float32(0.5)}},
    "a named tuple": Point(torch.zeros(2, dtype=torch.bfloat16), (torch.tensor(3), [np.bool_(True)])),
}


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for part, its in zip(one, other):
            same(part, its)
    else:
        assert one == other


def test_the_sample_that_is_stored_just_now_is_as_it_will_be_read(tmp_path):
    """Or a transform would meet other strides in the first epoch."""
    cache = SampleCache(Listed([torch.arange(24).view(2, 4, 3).permute(2, 0, 1)] * 2), tmp_path)
    first, again = cache[1], cache[1]
    assert cache.dataset.asked == [1]
    assert first.stride() == again.stride() == (8, 4, 1)
    assert torch.equal(first, cache.dataset.samples[1])


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_what_it_was(name, tmp_path):
    dataset = Listed([SAMPLES[name]] * 3)
    for _ in range(2):
        cache = SampleCache(dataset, tmp_path)
        same(cache[1], SAMPLES[name])
        same(cache[-2], SAMPLES[name])
        same(cache.__getitems__([1, 1])[1], SAMPLES[name])
    assert dataset.asked == [1]


@pytest.mark.parametrize("name", SAMPLES)
def test_gathered_rows_are_what_default_collate_makes(name, tmp_path):
    cache = SampleCache(Listed([SAMPLES[name]] * 4), tmp_path)
    cache.store(0)
    cache.store(2)
    store = cache._opened()
    targets = [torch.zeros(3, *leaf.shape[1:], dtype=leaf.dtype) for leaf in store.leaves]
    assert list(cache.gather_into([2, 3, 0], targets)) == [1]
    cache.store(3)
    assert list(cache.gather_into([2, 3, 0], targets)) == []
    leaves = []

    def collect(part):
        if isinstance(part, dict):
            for value in part.values():
                collect(value)
        elif isinstance(part, (tuple, list)):
            for value in part:
                collect(value)
        else:
            leaves.append(part)

    collect(default_collate([SAMPLES[name]] * 3))
    assert len(leaves) == len(targets)
    for leaf, target in zip(leaves, targets):
        same(target, leaf)


@pytest.mark.parametrize("side", [3, 100])
def test_samples_that_are_asked_for_at_once_are_those_that_are_asked_for_one_by_one(side, tmp_path):
    dataset = Listed([(torch.full((side, side), at), at) for at in range(6)])
    cache = SampleCache(dataset, tmp_path)
    for stored in (0, 2, 5):
        cache.store(stored)
    dataset.asked.clear()
    found = cache.__getitems__([5, 1, -1, 0, 1])
    assert dataset.asked == [1]
    for index, sample in zip([5, 1, 5, 0, 1], found):
        same(sample, dataset.samples[index])
    found[0][0].zero_()
    same(found[2], dataset.samples[5])
    same(cache[5], dataset.samples[5])


def test_small_samples_are_copied_at_once(tmp_path, monkeypatch):
    cache = SampleCache(Listed([torch.zeros(2)] * 4), tmp_path)
    for index in range(4):
        cache.store(index)
    monkeypatch.setattr(cache._opened(), "read", None)
    assert len(cache.__getitems__([0, 1, 3])) == 3


def test_a_kind_of_tensor_stays_one(tmp_path):
    tv_tensors = pytest.importorskip("torchvision.tv_tensors")
    image = tv_tensors.Image(torch.zeros(3, 4, 4, dtype=torch.uint8))
    cache = SampleCache(Listed([image] * 2), tmp_path)
    cache.store(0)
    assert type(cache[0]) is tv_tensors.Image


def test_samples_are_the_callers_own(tmp_path):
    cache = SampleCache(TensorDataset(torch.ones(2, 3)), tmp_path)
    for _ in range(3):
        assert cache[0][0].sum() == 3
        cache[0][0].zero_()


@pytest.mark.parametrize("sample", ["text", ("text", 1), {1: 2}, {"a/b": 1}, torch.zeros(0, 2), [], np.array(["a"])])
def test_what_cannot_be_kept_is_refused(sample, tmp_path):
    with pytest.raises(CallerError):
        SampleCache(Listed([sample]), tmp_path)[0]


def test_one_that_differs_is_made_each_time(tmp_path):
    dataset = Listed([torch.zeros(2), torch.zeros(3), torch.zeros(2, dtype=torch.int64)])
    cache = SampleCache(dataset, tmp_path)
    assert cache.store(0) == caching.STORED
    with pytest.warns(RuntimeWarning, match="sample 1 is not stored"):
        assert cache[1].shape == (3,)
    assert cache.store(2) == caching.UNFIT
    assert cache.missing() == [1, 2]


@pytest.mark.parametrize("beyond", [1 << 63, -(1 << 63) - 1, 1 << 200])
def test_a_number_beyond_its_type_is_made_each_time(beyond, tmp_path):
    samples = [1, beyond, (1 << 63) - 1]
    cache = SampleCache(Listed(samples), tmp_path)
    assert cache[0] == 1
    with pytest.warns(RuntimeWarning, match="sample 1 is not stored.* is no torch.int64"):
        assert cache[1] == beyond
    assert cache[2] == samples[2]
    assert cache.stored() == 2


class Drawn(Dataset):
    """Draws from the global generators, and from some of its own; from one of those that it makes as it needs it."""

    def __init__(self):
        self.numpy, self.old, self.plain = np.random.default_rng(), np.random.RandomState(), random.Random()
        self.torch = torch.Generator()
        self.late = None

    def __len__(self):
        return 8

    def __getitem__(self, index):
        self.late = self.late or np.random.default_rng()
        own = [self.numpy.random(), self.old.rand(), self.plain.random(), self.late.random()]
        return [*own, torch.rand(1, generator=self.torch), torch.rand(()), np.random.rand(), random.random()]


def test_what_the_dataset_draws_is_the_samples_own_and_nobody_elses():
    drawn = []
    dataset = Drawn()
    randomness = OwnRandomness(dataset)
    for before in (0, 3):
        torch.manual_seed(before)
        np.random.seed(before)
        random.seed(before)
        states = torch.rand(()), np.random.rand(), random.random()
        torch.manual_seed(before)
        np.random.seed(before)
        random.seed(before)
        drawn.append(randomness.load(7))
        assert (torch.rand(()), np.random.rand(), random.random()) == states
    assert drawn[0] == drawn[1] == OwnRandomness(Drawn()).load(7)
    assert all(one != other for one, other in zip(drawn[0], randomness.load(6)))


def test_a_dataset_with_generators_of_its_own_is_what_it_was_after_a_sample():
    dataset = Drawn()
    randomness = OwnRandomness(dataset)
    randomness.load(0)
    before = fingerprint({"dataset": dataset})
    randomness.load(1)
    assert fingerprint({"dataset": dataset}) == before


def test_a_full_disk_is_told_once_and_samples_are_made(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    dataset = TensorDataset(torch.arange(5))
    cache = SampleCache(dataset, tmp_path)
    cache.store(0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.warns(
            RuntimeWarning, match=r"No space left on device; all 5 samples take 40 B .* or set limit="
        ) as told:
            found = [int(cache[index][0]) for index in range(5)]
        assert found == [0, 1, 2, 3, 4]
        assert len(told) == 1
        assert cache.store(4) == caching.REFUSED
    assert cache.missing() == [1, 2, 3, 4]
    other = SampleCache(dataset, tmp_path)
    assert other.store(4) == caching.STORED
    assert other.missing() == [1, 2, 3]


def test_a_disk_that_is_full_from_the_beginning(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "ftruncate", full)
    cache = SampleCache(TensorDataset(torch.arange(5)), tmp_path / "cache")
    with pytest.warns(RuntimeWarning, match="No space left on device; .*cache has no room"):
        assert [int(cache[index][0]) for index in range(5)] == [0, 1, 2, 3, 4]
    assert not any((tmp_path / "cache").iterdir())


def test_a_row_that_another_process_writes_is_left_to_it(tmp_path):
    cache = SampleCache(TensorDataset(torch.arange(5)), tmp_path)
    cache.store(0)
    fd = os.open(cache.directory / MARKS, os.O_RDWR)
    try_lock(fd, ROW_LOCK_OFFSET + 3)
    assert cache.store(3) == caching.BUSY
    assert int(cache[3][0]) == 3
    os.close(fd)
    assert cache.store(3) == caching.STORED


def test_a_row_that_another_process_stores_is_not_made_for_it_a_second_time(tmp_path):
    """Found as the last samples of each build, which a worker made that was ahead in the next epoch."""
    ours, theirs = (SampleCache(Listed([1, 2, 3]), tmp_path) for _ in range(2))
    ours.store(0)
    with theirs._opened().claimed(2) as claimed:
        assert claimed
        assert ours.store(2) == caching.BUSY
        assert theirs.store(2) == caching.STORED
    assert ours.store(2) == caching.STORED
    assert (ours.dataset.asked, theirs.dataset.asked) == ([0], [2])


def test_a_limit_keeps_the_first_samples(tmp_path):
    cache = SampleCache(TensorDataset(torch.arange(10)), tmp_path, limit=24)
    assert [cache.store(index) for index in range(10)] == [caching.STORED] * 3 + [caching.BEYOND] * 7
    assert [int(cache[index][0]) for index in range(10)] == list(range(10))
    with pytest.raises(CallerError, match="limit="):
        SampleCache(TensorDataset(torch.arange(11)), tmp_path, limit=4)[0]


def test_another_process_finds_the_same_cache_by_its_pickle(tmp_path):
    cache = SampleCache(TensorDataset(torch.arange(3)), tmp_path)
    cache.store(1)
    other = pickle.loads(pickle.dumps(cache))
    assert other.directory == cache.directory
    assert other.missing() == [0, 2]


def test_a_dataset_that_was_changed_in_place_has_another_cache_when_it_is_handed_over(tmp_path):
    dataset = Listed([1, 2])
    cache = SampleCache(dataset, tmp_path)
    before = cache.fingerprint, fingerprint({"dataset": cache})
    dataset.samples[0] = 5
    pickle.dumps(cache)
    assert cache.fingerprint != before[0]
    assert fingerprint({"dataset": cache}) != before[1]


def test_where_it_lies_and_what_is_stored_do_not_count_for_streams(tmp_path):
    one, other = (SampleCache(TensorDataset(torch.arange(3)), tmp_path / name) for name in "ab")
    one.store(0)
    assert fingerprint({"dataset": one}) == fingerprint({"dataset": other})


def test_a_file_that_was_cut_is_told_before_it_is_read(tmp_path):
    dataset = TensorDataset(torch.arange(3))
    cache = SampleCache(dataset, tmp_path)
    cache.store(0)
    (cache.samples / "0.memmap").write_bytes(b"")
    with pytest.raises(ProtocolError, match="prefetchd cache rm"):
        SampleCache(dataset, tmp_path)[0]


def test_an_iterable_dataset_is_refused(tmp_path):
    class Endless(IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(CallerError, match="cannot be cached"):
        SampleCache(Endless(), tmp_path)


def test_without_tensordict_it_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(caching.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CallerError, match="pip install tensordict"):
        SampleCache(TensorDataset(torch.arange(3)), tmp_path)
