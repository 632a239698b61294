"""What a sample cache does with what it is not meant for: odd indices and samples, damaged files, other processes."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
import torch
from prefetchd_client import SampleCache, declared
from prefetchd_client.sample_cache import building, store
from prefetchd_client.sample_cache import dataset as caching
from prefetchd_client.sample_cache.__main__ import main
from torch.utils.data import Dataset, TensorDataset

from prefetchd.wire.cache_removal import remove_cache, remove_leftovers
from prefetchd.wire.errors import CallerError, ProtocolError, RemoteError

pytest.importorskip("tensordict")


class Listed(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        return self.samples[index]


def rows_of(*shape):
    """Five samples, each full of its own index."""
    return TensorDataset(torch.arange(5, dtype=torch.int64).view(5, *[1] * len(shape)).expand(5, *shape).clone())


def gathered(cache, indices):
    """What gather_into has put into rows of -1, and the places it has left."""
    opened = cache._opened()
    target = torch.full((len(indices), *opened.leaves[0].shape[1:]), -1)
    left = list(cache.gather_into(indices, [target]))
    return target.view(len(indices), -1)[:, 0].tolist(), left


# --- indices ---


@pytest.mark.parametrize("shape", [(1,), (64, 64)], ids=["small rows", "large rows"])
def test_negative_indices_are_gathered_from_the_end(shape, tmp_path):
    cache = SampleCache(rows_of(*shape), tmp_path)
    for index in range(5):
        cache.store(index)
    assert gathered(cache, [-1, 0, -5]) == ([4, 0, 0], [])
    assert gathered(cache, [np.int64(-2), torch.tensor(3)]) == ([3, 3], [])


@pytest.mark.parametrize("shape", [(1,), (64, 64)], ids=["small rows", "large rows"])
def test_negative_indices_mean_the_datasets_end_and_not_the_last_stored_one(shape, tmp_path):
    cache = SampleCache(rows_of(*shape), tmp_path, limit=2 * 8 * int(np.prod(shape)))
    cache.store(0)
    cache.store(1)
    assert gathered(cache, [-1, 1, -4]) == ([-1, 1, 1], [0])
    assert cache[-1][0].flatten()[0] == 4


@pytest.mark.parametrize("index", [5, -6, 1 << 40, -(1 << 40)])
def test_what_the_dataset_has_not_is_left_to_it(index, tmp_path):
    cache = SampleCache(rows_of(64, 64), tmp_path)
    for each in range(5):
        cache.store(each)
    assert gathered(cache, [2, index]) == ([2, -1], [1])
    with pytest.raises(IndexError):
        cache[index]


def test_a_negative_index_is_stored_at_its_place(tmp_path):
    cache = SampleCache(rows_of(1), tmp_path)
    assert cache.store(-1) == caching.STORED
    assert cache.missing() == [0, 1, 2, 3]
    assert cache.store(-1) == caching.STORED


# --- samples ---

NAMED = torch.zeros(2, 4)
NAMED.source = "camera"
ODD = {
    "of another type": ("text", "is str"),
    "without boxes": (torch.zeros(0, 4), r"of shape \(0, 4\)"),
    "an array without boxes": (np.zeros((0, 4)), r"of shape \(0, 4\)"),
    "with a gradient": (torch.zeros(2, 4, requires_grad=True), "requires grad"),
    "sparse": (torch.zeros(2, 4).to_sparse(), "sparse"),
    "a conjugate view": (torch.zeros(2, dtype=torch.complex64).conj(), "conjugate"),
    "with attributes": (NAMED, "with attributes source"),
    "of objects": (np.array([None]), "array of object"),
}


@pytest.mark.parametrize("name", ODD)
def test_a_later_sample_that_cannot_be_kept_is_made_each_time(name, tmp_path):
    odd, why = ODD[name]
    cache = SampleCache(Listed([(torch.zeros(2, 4), 0), (odd, 1)]), tmp_path)
    cache.store(0)
    with pytest.warns(RuntimeWarning, match=f"sample 1 is not stored.*{why}"):
        assert cache[1][0] is odd
    assert cache.store(1) == caching.UNFIT


@pytest.mark.parametrize("name", ODD)
def test_a_first_sample_that_cannot_be_kept_is_an_error_that_says_why(name, tmp_path):
    odd, why = ODD[name]
    with pytest.raises(CallerError, match=rf"sample\[0\].*{why}"):
        SampleCache(Listed([(odd, 1)]), tmp_path)[0]


def test_classes_that_cannot_be_imported_are_found_in_a_sample_that_has_them(tmp_path):
    local = namedtuple("local", ["x"])
    dataset = Listed([(1, "text"), ("text",), (local(0),), (local(1),)])
    SampleCache(dataset, tmp_path).store(2)
    reader, writer = (SampleCache(dataset, tmp_path) for _ in range(2))
    assert reader[2] == (local(0),)
    with pytest.warns(RuntimeWarning, match="sample 0 is not stored"):
        assert writer[0] == (1, "text")
    assert writer.store(1) == caching.UNFIT
    assert writer.store(3) == caching.STORED


# --- descriptors and mappings ---


def descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_caches_that_are_dropped_give_their_descriptors_back(tmp_path):
    dataset = rows_of(1)
    SampleCache(dataset, tmp_path).store(0)
    gc.collect()
    before = descriptors()
    for _ in range(3):
        assert SampleCache(dataset, tmp_path)[0][0] == 0
    gc.collect()
    assert descriptors() == before


def test_a_dataset_that_was_changed_in_place_has_its_former_cache_closed(tmp_path):
    dataset = Listed([1, 2])
    cache = SampleCache(dataset, tmp_path)
    cache.store(0)
    former = cache._opened()
    before = descriptors()
    dataset.samples[0] = 5
    cache.refresh()
    assert descriptors() < before
    assert cache._opened() is None
    assert former.pid == os.getpid(), "it is kept until here: nobody closes it but refresh()"


def test_a_cache_of_another_length_is_closed_again(tmp_path):
    dataset = Listed([1, 2])
    cache = SampleCache(dataset, tmp_path)
    cache.store(0)
    cache.close()
    dataset.samples.append(3)
    before = descriptors()
    raised = []
    for _ in range(3):
        with pytest.raises(ProtocolError, match="fingerprint_extra") as error:
            cache[0]
        # Tracebacks keep their frames, and so the store.
        raised.append(error)
    assert descriptors() == before


@pytest.mark.parametrize("closed", [True, False])
def test_a_leaf_that_outlives_its_store_keeps_its_memory(closed, tmp_path):
    cache = SampleCache(rows_of(64, 64), tmp_path)
    cache.store(3)
    opened = cache._opened()
    leaf = opened.leaves[0]
    file = str(cache.samples)
    if closed:
        opened.close()
    del opened, cache
    gc.collect()
    assert file in Path("/proc/self/maps").read_text()
    assert int(leaf[3, 0, 0]) == 3
    del leaf
    gc.collect()
    assert file not in Path("/proc/self/maps").read_text()


# --- other processes, and files that somebody has meddled with ---


@pytest.mark.parametrize("before", [(os, "open"), (store, "try_lock")], ids=["its marks are there", "they are locked"])
def test_a_maker_whose_directory_is_taken_for_a_dead_ones_makes_another(before, tmp_path, monkeypatch):
    tidied = []
    owner, name = before
    function = getattr(owner, name)

    def preceded(*arguments, **named):
        if not tidied and any(each.name.count(".new-") for each in tmp_path.iterdir()):
            tidied.append(None)
            tidied[0] = remove_leftovers(tmp_path)
        return function(*arguments, **named)

    monkeypatch.setattr(owner, name, preceded)
    cache = SampleCache(rows_of(1), tmp_path)
    assert cache.store(3) == caching.STORED
    assert tidied == [1]
    assert list(tmp_path.iterdir()) == [cache.directory]
    assert cache[3][0] == 3


@pytest.mark.parametrize("file", ["marks", "samples/0.memmap"])
def test_a_file_that_is_missing_is_damage_and_no_cache_is_made_instead(file, tmp_path):
    cache = SampleCache(rows_of(1), tmp_path)
    cache.store(0)
    cache.close()
    (cache.directory / file).unlink()
    with pytest.raises(ProtocolError, match=f"{file} is missing.*prefetchd cache rm"):
        cache[1]
    assert list(tmp_path.iterdir()) == [cache.directory]


def test_a_cache_that_is_removed_while_it_is_opened_is_made_anew(tmp_path, monkeypatch):
    cache = SampleCache(rows_of(1), tmp_path)
    cache.store(0)
    cache.close()

    def described(inside, directory):
        monkeypatch.undo()
        found = store.read_description_at(inside, directory)
        remove_cache(directory)
        return found

    monkeypatch.setattr(store, "read_description_at", described)
    assert cache.store(1) == caching.STORED
    assert cache.missing() == [0, 2, 3, 4]


def test_a_cache_that_cannot_get_its_name_is_made_once_and_the_reason_told(tmp_path, monkeypatch):
    made = []

    def refused(self, target):
        made.append(target)
        raise PermissionError(errno.EPERM, "Operation not permitted", str(target))

    cache = SampleCache(rows_of(1), tmp_path)
    monkeypatch.setattr(Path, "rename", refused)
    with pytest.warns(RuntimeWarning, match="Operation not permitted"):
        assert cache[2][0] == 2
    assert made.count(cache.directory) == 1


# --- building, and limits ---


def stored_in_process(cache, **options):
    return sum(cache.store(index) == caching.STORED for index in cache.missing())


def test_a_build_whose_last_round_stores_the_last_samples_is_whole(tmp_path, monkeypatch):
    cache = SampleCache(rows_of(1), tmp_path)
    rounds = []

    def stored_one(cache, missing, *rest):
        rounds.append(missing)
        cache.store(missing[0])

    monkeypatch.setattr(building, "_round", stored_one)
    assert cache.build(progress=False) == 5
    assert len(rounds) == building.ROUNDS == 4


def test_a_build_that_others_are_at_says_how_many_samples_they_have(tmp_path, monkeypatch):
    cache = SampleCache(rows_of(1), tmp_path)
    monkeypatch.setattr(building, "_round", lambda *given: None)
    with pytest.raises(RemoteError, match="4 samples are still being stored"):
        cache.build(progress=False)


@pytest.mark.parametrize("limit", [40e9, True, "many", [1]])
def test_a_limit_that_is_no_whole_number_is_refused_at_once(limit, tmp_path):
    with pytest.raises(CallerError, match="limit="):
        SampleCache(rows_of(1), tmp_path, limit=limit)


def test_numpys_integers_are_limits(tmp_path):
    cache = SampleCache(rows_of(1), tmp_path, limit=np.int64(24))
    assert [cache.store(index) for index in (2, 3)] == [caching.STORED, caching.BEYOND]


@pytest.mark.parametrize("limit", ["16", None])
def test_a_build_tells_the_limit_that_the_cache_was_made_with(limit, tmp_path, monkeypatch, capsys):
    cache = SampleCache(rows_of(1), tmp_path, limit=16)
    cache.store(0)
    monkeypatch.setattr(SampleCache, "build", stored_in_process)
    monkeypatch.setattr(declared, "make", lambda *given: cache.dataset)
    given = [f"--path={tmp_path}", *([f"--limit={limit}"] if limit else [])]
    monkeypatch.setattr(sys, "argv", ["build", "module:factory", *given])
    assert main() == 0
    told = capsys.readouterr().out
    assert "stored 1 samples, 2 in all" in told
    assert "3 have no place: the cache was made with room for 2 samples, 16 B (limit=)" in told


def test_another_byte_order_is_told_and_made_each_time(tmp_path):
    cache = SampleCache(Listed([np.arange(4, dtype="<f4"), np.arange(4, dtype=">f4")]), tmp_path)
    cache.store(0)
    with pytest.warns(RuntimeWarning, match="sample 1 is not stored.*an array of >f4"):
        assert cache[1].tolist() == [0, 1, 2, 3]


def test_each_kind_of_trouble_is_told_once(tmp_path, monkeypatch):
    """Found as a full disk that nobody heard of: one sample had been told of before."""
    cache = SampleCache(Listed([torch.zeros(2), torch.zeros(3), torch.zeros(2)]), tmp_path)
    cache.store(0)
    with pytest.warns(RuntimeWarning, match="sample 1 is not stored"):
        cache[1]

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store.CacheStore, "write", full)
    with pytest.warns(RuntimeWarning, match="nothing more is stored.*No space left"):
        cache[2]


def test_one_that_is_tidied_up_while_it_is_made_is_made_again(tmp_path, monkeypatch):
    """Found by reading: whoever tidied up opened the marks, and so made them, just before their maker did."""
    tidied = []
    made = Path.mkdir

    def make(self, *arguments, **options):
        made(self, *arguments, **options)
        if ".new" in self.name and not tidied:
            tidied.append(self)
            (self / store.MARKS).touch()

    monkeypatch.setattr(Path, "mkdir", make)
    cache = SampleCache(rows_of(3), tmp_path)
    cache.store(0)
    assert len(tidied) == 1
    assert cache.stored() == 1


class Opening(Listed):
    """Opens its file at its first sample, as one does with HDF5 or LMDB."""

    file = None

    def __getitem__(self, index):
        if self.file is None:
            self.file = self.opened = open(os.devnull)  # noqa: SIM115 - as one does
        return super().__getitem__(index)


def test_a_dataset_that_its_first_sample_changes_has_one_version(tmp_path):
    """Found as a build() whose workers stored all samples in another version than it looked at."""
    dataset = Opening([torch.full((2,), at) for at in range(5)])
    cache = SampleCache(dataset, tmp_path)
    version = cache.fingerprint
    cache.store(0)
    cache.refresh()
    assert cache.fingerprint == version
    dataset.samples[3] = torch.full((2,), 7)
    cache.refresh()
    assert cache.fingerprint != version
    dataset.file.close()
