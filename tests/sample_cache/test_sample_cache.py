"""A sample cache with real loaders: the same batches with it and without, each sample made once, whoever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from prefetchd_client import PrefetchLoader, SampleCache
from torch.utils.data import Subset, default_collate

from prefetchd.wire.errors import RemoteError
from tests.sample_cache.cached_datasets import LENGTH, Plain, Prepared, Watched, jittered
from tests.scenario.datasets import equal
from tests.scenario.waiting import stream_when

pytest.importorskip("tensordict")
BATCH = 8


def copied(loader):
    return [[each.clone() for each in batch] for batch in loader]


def plain_batches(dataset, order=None):
    order = range(len(dataset)) if order is None else order
    samples = [dataset[index] for index in order]
    return [list(default_collate(samples[at : at + BATCH])) for at in range(0, len(samples), BATCH)]


def test_batches_are_those_of_the_dataset_and_each_sample_is_made_once(daemon, tmp_path):
    dataset = Plain(tmp_path / "calls")
    cache = SampleCache(dataset, tmp_path / "cache")
    expected = plain_batches(Plain(tmp_path / "oracle"))
    with PrefetchLoader(cache, batch_size=BATCH, deterministic=False, buffer=4) as loader:
        for _ in range(3):
            assert equal(copied(loader), expected)
    assert sorted(dataset.made()) == list(range(LENGTH))
    assert cache.missing() == []


def test_rows_are_gathered_by_all_workers(daemon, tmp_path):
    dataset = Plain(tmp_path / "calls")
    cache = Watched(dataset, tmp_path / "cache")
    cache.build(progress=False)
    with PrefetchLoader(cache, batch_size=20, shuffle=True, seed=3, num_workers=2, stream="gathered") as loader:
        epochs = [copied(loader) for _ in range(10)]
        assert stream_when(daemon, "gathered")["by_rows"]
        assert loader.stats()["private_copies"] == 0
    oracle = [Plain(tmp_path / "oracle")[index][0] for index in range(LENGTH)]
    for batches in epochs:
        labels = torch.cat([labels for _, labels in batches])
        assert sorted(labels.tolist()) == list(range(LENGTH))
        for images, labels in batches:
            assert torch.equal(images, torch.stack([oracle[label] for label in labels]))
    copies = [line.split() for line in cache.copies.read_text().splitlines()]
    assert sum(int(rows) for _, rows in copies) >= 10 * LENGTH, "each row was gathered"
    assert len({pid for pid, _ in copies}) == 2
    assert min(int(rows) for _, rows in copies) < 20, "batches are cut"


@pytest.mark.filterwarnings("ignore:sample cache")
def test_status_shows_that_damage_was_found(daemon, tmp_path):
    cache = SampleCache(Plain(tmp_path / "calls"), tmp_path / "cache")
    for index in range(LENGTH):
        cache.store(index)
    leaf = max(cache.samples.rglob("*.memmap"), key=lambda path: path.stat().st_size)
    leaf.write_bytes(bytes(leaf.stat().st_size))
    with PrefetchLoader(SampleCache(cache.dataset, cache.path), batch_size=BATCH, stream="damaged") as loader:
        first = next(iter(loader))
        assert torch.equal(first[0][0], Plain(tmp_path / "oracle")[0][0])
        stream_when(daemon, "damaged", lambda it: it["cache_damaged"], "a worker has found damage")


@pytest.mark.parametrize("chosen", [range(5, 50, 3), [7, 7, 1]])
def test_a_subset_of_a_cache(daemon, tmp_path, chosen):
    cache = SampleCache(Plain(tmp_path / "calls"), tmp_path / "cache")
    with PrefetchLoader(Subset(cache, list(chosen)), batch_size=BATCH) as loader:
        assert equal(copied(loader), plain_batches(Plain(tmp_path / "oracle"), chosen))


def test_random_transforms_after_it_draw_the_same_whether_samples_were_there_or_not(daemon, tmp_path):
    epochs = []
    for built in (False, True):
        cache = SampleCache(Prepared(tmp_path / f"calls{built}"), tmp_path / f"cache{built}", fingerprint_extra=built)
        if built:
            cache.build(progress=False)
        with PrefetchLoader(cache, batch_size=BATCH, shuffle=True, seed=1, transform=jittered) as loader:
            epochs.append([copied(loader) for _ in range(2)])
    assert equal(epochs[0], epochs[1])
    assert not equal(epochs[0][0][0], epochs[0][1][0]), "each epoch draws anew"


def test_an_edited_dataset_reads_no_old_samples(daemon, tmp_path):
    dataset = Prepared(tmp_path / "calls")
    cache = SampleCache(dataset, tmp_path / "cache")
    with PrefetchLoader(cache, batch_size=BATCH) as loader:
        first = copied(loader)
        dataset.variant = 100
        second = copied(loader)
    assert int(first[0][0][0, 1, 0, 0]) == 0
    assert int(second[0][0][0, 1, 0, 0]) == 100
    assert int(SampleCache(dataset, tmp_path / "cache")[1].image[1, 0, 0]) == 101
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_validation_from_a_cache_is_kept_in_the_ring(daemon, tmp_path):
    cache = SampleCache(Plain(tmp_path / "calls"), tmp_path / "cache")
    with PrefetchLoader(cache, batch_size=BATCH) as loader:
        assert loader.spec.equal_epochs
        epochs = [copied(loader) for _ in range(2)]
        assert equal(*epochs)


def test_tensordict_reads_what_was_built(daemon, tmp_path):
    from tensordict import TensorDict

    cache = SampleCache(Prepared(tmp_path / "calls"), tmp_path / "cache")
    assert cache.build(progress=False) == LENGTH
    assert cache.build(progress=False) == 0
    found = TensorDict.load_memmap(cache.samples)
    assert found.batch_size == torch.Size([LENGTH])
    assert found["label"].tolist() == list(range(LENGTH))
    assert torch.equal(found["image"][7], cache[7].image)
    assert found["image"][7, 1, 0, 0] == 7


def test_a_build_that_is_killed_goes_on_where_it_was(daemon, tmp_path):
    """With its workers and its daemon, again and again."""
    code = (
        "import sys; from prefetchd_client import SampleCache\n"
        "from tests.sample_cache.cached_datasets import Prepared\n"
        "SampleCache(Prepared(sys.argv[1], 64, 2000), sys.argv[2]).build(progress=False)"
    )
    calls, path = tmp_path / "calls", tmp_path / "cache"
    dataset = Prepared(calls, 64, 2000)
    cache = SampleCache(dataset, path)
    for wanted in (150, 400):
        building = subprocess.Popen([sys.executable, "-c", code, str(calls), str(path)], env=daemon.environment)
        while len(dataset.made()) < wanted and building.poll() is None:
            time.sleep(0.001)
        building.kill()
        building.wait()
        daemon.kill_all()
        cache.close()
        whole = set(range(2000)) - set(cache.missing()) if cache.directory.exists() else set()
        oracle = Prepared(tmp_path / "oracle", 64, 2000)
        for index in sorted(whole)[::7]:
            found = cache[index]
            assert found.label == index
            assert torch.equal(found.image[1:], oracle[index].image[1:])
    before = len(dataset.made())
    assert len(whole) > 100
    cache.build(progress=False)
    assert cache.missing() == []
    # Not a count: the next daemon also goes on with the stream that the killed build left, so that a sample that both
    # come to at once is made by both.
    assert not whole & set(dataset.made()[before:]), "what was stored stayed"


@pytest.mark.filterwarnings("default")
def test_a_dataset_whose_samples_differ_cannot_be_built(daemon, tmp_path):
    class Ragged(Plain):
        def __getitem__(self, index):
            return torch.zeros(3 + index // 50), index

    from prefetchd.wire.errors import CallerError

    with pytest.raises(CallerError, match="has not the structure"):
        SampleCache(Ragged(tmp_path / "calls"), tmp_path / "cache").build(progress=False)


@pytest.mark.usefixtures("executed")
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting takes root")
def test_a_full_disk_is_told_and_training_goes_on(daemon, tmp_path, small_disk, capfd):
    dataset = Plain(tmp_path / "calls")
    cache = SampleCache(dataset, small_disk)
    with PrefetchLoader(cache, batch_size=BATCH, num_workers=1) as loader:
        for _ in range(2):
            assert equal(copied(loader), plain_batches(Plain(tmp_path / "oracle")))
    said = capfd.readouterr().err
    assert "No space left on device" in said
    assert "limit=" in said
    with pytest.raises(RemoteError, match="cannot be stored"):
        cache.build(progress=False)
    assert 0 < len(cache.missing()) < LENGTH


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one MiB; each sample takes 48 KiB."""
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False)
    if done.returncode:
        pytest.skip("tmpfs cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_worker_that_is_killed_while_it_stores_loses_nothing(daemon, tmp_path):
    dataset = Prepared(tmp_path / "calls", 64, 400)
    cache = SampleCache(dataset, tmp_path / "cache")
    oracle = Prepared(tmp_path / "oracle", 64, 400)
    with PrefetchLoader(cache, batch_size=BATCH, num_workers=2, deterministic=False, buffer=4) as loader:
        for step, batch in enumerate(loader):
            assert batch.label.tolist() == list(range(step * BATCH, (step + 1) * BATCH))
            assert torch.equal(batch.image[:, 1:], torch.stack([oracle[i].image[1:] for i in batch.label.tolist()]))
            if step % 10 == 5:
                workers = [each for each in daemon.processes() if each.name().startswith("prefetchd-w")]
                os.kill(workers[0].pid, signal.SIGKILL)
    assert cache.missing() == []
