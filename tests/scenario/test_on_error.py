"""on_error: samples that raise, or end their workers, are left out or replaced, and the rest is the same bytes for any
number of workers."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client import PrefetchLoader

from prefetchd.wire.errors import CallerError
from tests.scenario.datasets import Made, equal
from tests.scenario.deadly_datasets import Gathering, Partly, as_a_list
from tests.scenario.oracle import batches_without_bad
from tests.scenario.waiting import stream_when, until

RAISING = (0, 5, 6, 20, 21, 22, 23)  # the first sample, two of a batch, a whole batch
DEADLY = (0, 9)
KINDS = [
    pytest.param(Partly, None, id="by rows"),
    pytest.param(Partly, as_a_list, id="whole"),
    pytest.param(Gathering, None, id="getitems"),
]


def made(dataset, epochs=1, **arguments):
    """All batches; an error in the place of those that failed."""
    found = []
    with PrefetchLoader(dataset, 4, buffer=6, **arguments) as loader:
        for _ in range(epochs):
            iterator = iter(loader)
            while True:
                try:
                    found.append(next(iterator))
                except StopIteration:
                    break
                except Exception as error:
                    found.append(error)
    return found


def assert_same(found, expected):
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected):
        if isinstance(theirs, Exception):
            assert (type(ours), str(ours)) == (type(theirs), str(theirs))
        else:
            assert equal(ours, theirs)


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
@pytest.mark.parametrize(("kind", "collate_fn"), KINDS)
def test_samples_that_raise(shared_daemon, kind, collate_fn, on_error, workers, shuffle):
    dataset = kind(48, raising=RAISING)
    options = {"shuffle": shuffle, "collate_fn": collate_fn}
    stream = f"{kind.__name__} {collate_fn} {on_error} {workers} {shuffle}"
    found = made(dataset, epochs=2, on_error=on_error, num_workers=workers, stream=stream, **options)
    known = {key: value for key, value in options.items() if value is not None}
    gathered = kind is Gathering
    expected = [
        batch
        for epoch in range(2)
        for batch in batches_without_bad(dataset, epoch, on_error, batch_size=4, gathered=gathered, **known)
    ]
    assert_same(found, expected)
    if not shuffle and on_error == "skip":
        assert isinstance(found[5], ValueError), "of that batch nothing is left"
        assert str(found[5]) == "no sample 20"
    told = stream_when(shared_daemon, stream, lambda told: told["bad_samples"] >= 2 * len(RAISING), "all are counted")
    assert told["worker_deaths"] == 0


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
@pytest.mark.parametrize(("kind", "collate_fn"), KINDS)
def test_samples_that_end_their_workers(shared_daemon, kind, collate_fn, on_error, workers):
    dataset = kind(24, raising=(7,), deadly=DEADLY)
    found = made(dataset, on_error=on_error, num_workers=workers, collate_fn=collate_fn)
    known = {} if collate_fn is None else {"collate_fn": collate_fn}
    gathered = kind is Gathering
    assert_same(found, batches_without_bad(dataset.harmless(), 0, on_error, batch_size=4, gathered=gathered, **known))


def test_samples_are_told_once_by_index_and_counted_each_time(shared_daemon, capfd):
    stream = "told"
    with PrefetchLoader(
        Partly(48, raising=(5, 30)), 4, buffer=6, on_error="substitute", num_workers=1, stream=stream
    ) as loader:
        for _ in range(3):
            list(loader)
        stream_when(shared_daemon, stream, lambda told: told["bad_samples"] >= 6, "three epochs of two")
        said = ""

        def has_come():
            nonlocal said
            next(iter(loader))
            said += capfd.readouterr().err
            return "dataset[30]" in said

        until(has_come, "the trainer was told")
    assert said.count("dataset[5] (epoch 0, step 1, row 1) gives way to dataset[") == 1
    assert said.count("dataset[5] (") == 1, "once, though it raises in each epoch"
    assert "ValueError: no sample 5" in said
    logged = [line for line in shared_daemon.paths.log.read_text().splitlines() if '"bad sample"' in line]
    of_stream = [line for line in logged if f'"{stream}"' in line]
    assert sum('"index": 5,' in line for line in of_stream) == 1


@pytest.mark.parametrize("inline", ["", "1"])
def test_stats_and_status_have_the_list_of_bad_samples(shared_daemon, monkeypatch, inline):
    monkeypatch.setenv("PREFETCHD_INLINE", inline)
    arguments = {"batch_size": 4, "buffer": 6, "on_error": "skip", "num_workers": 1, "stream": "listed"}
    with PrefetchLoader(Partly(12, raising=(5, 9)), **arguments) as loader:
        list(loader)
        found = loader.stats()["bad_samples"]
        first, second = sorted(found[:2], key=lambda bad: bad["step"])
        assert [(bad["step"], bad["row"]) for bad in (first, second)] == [(1, 1), (2, 1)]
        assert first["text"].startswith("dataset[5] (epoch 0, step 1, row 1) is left out: ValueError: no sample 5")
        assert loader.stats()["bad_sample_count"] == len(found)
        if not inline:
            assert len(found) == 2, "each index once"
            named = stream_when(shared_daemon, "listed", lambda told: len(told["bad_samples_named"]) == 2)
            assert sorted(named["bad_samples_named"]) == sorted(bad["text"] for bad in found)
            list(loader)
            assert loader.stats()["bad_sample_count"] == 2, "of samples, not of times"
            stream_when(shared_daemon, "listed", lambda told: told["bad_samples"] >= 4, "the times of two epochs")
    if not inline:
        with PrefetchLoader(Partly(12, raising=(5, 9)), **arguments) as later:
            next(iter(later))
            assert later.stats()["bad_samples"] == found, "whoever comes later is told what was named before"
            assert later.stats()["bad_sample_count"] == 2


def test_a_dataset_of_nothing_but_bad_samples_raises_its_first_error(shared_daemon):
    with PrefetchLoader(Partly(8, raising=tuple(range(8))), 4, buffer=6, on_error="substitute") as loader:
        iterator = iter(loader)
        for step in range(2):
            with pytest.raises(ValueError, match=f"no sample {4 * step}") as caught:
                next(iterator)
            assert "so did the 8 samples that were to take its place" in str(caught.value.__cause__)


def test_a_substitute_of_another_shape_makes_its_batch_whole(shared_daemon):
    """Samples of different shape cannot be collated: that is the error then, and not a torn row."""
    with PrefetchLoader(Made(_of_two_shapes, 8), 4, buffer=6, on_error="skip") as loader:
        assert [batch.shape for batch in loader] == [(3, 2), (4, 2)]


def test_without_batching_a_sample_that_raises_is_an_error(shared_daemon):
    with PrefetchLoader(Partly(4, raising=(1,)), None, buffer=6, on_error="skip") as loader:
        iterator = iter(loader)
        assert next(iterator)[0] == 0
        with pytest.raises(ValueError, match="no sample 1"):
            next(iterator)
        assert next(iterator)[0] == 2


def test_on_error_belongs_to_the_stream_s_identity(shared_daemon):
    prints = set()
    for on_error in ("raise", "skip", "substitute"):
        with PrefetchLoader(Partly(8), 4, buffer=6, on_error=on_error) as loader:
            prints.add(loader.fingerprint)
    assert len(prints) == 3


def test_another_on_error_is_refused():
    with pytest.raises(CallerError, match="on_error is 'ignore'; allowed: 'raise', 'skip', 'substitute'"):
        PrefetchLoader(Partly(8), 4, on_error="ignore")


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_inline_gives_the_same_and_says_so(monkeypatch, capfd, on_error):
    monkeypatch.setenv("PREFETCHD_INLINE", "1")
    dataset = Partly(24, raising=(0, 5))
    assert_same(made(dataset, on_error=on_error), batches_without_bad(dataset, 0, on_error, batch_size=4))
    assert "dataset[5] (epoch 0, step 1, row 1)" in capfd.readouterr().err


def _of_two_shapes(index):
    if index == 1:
        raise ValueError
    return torch.full((2,), index)
