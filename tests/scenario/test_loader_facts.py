"""What a loader says of itself: repr, card, summary, metrics and progress, beside a real daemon."""

from __future__ import annotations

import io

import pytest
import torch
from prefetchd_client import PrefetchLoader, progress
from prefetchd_client.loader import loader as loader_module
from torch.utils.data import DataLoader, TensorDataset

from prefetchd.status.snapshot import read_report
from prefetchd.status.status_object import status_object
from tests.scenario.waiting import until

DATA = TensorDataset(torch.arange(4000))


@pytest.fixture
def loader(daemon):
    with PrefetchLoader(DATA, batch_size=4, num_workers=1, stream="<i>train</i>", buffer=8, seed=1) as found:
        yield found


def measured(loader):
    """Iterates, over and over, until the daemon has measured something."""

    def an_epoch() -> bool:
        return any(loader.summary()["batches_per_s"] for _ in loader)

    until(an_epoch, "the daemon has measured a rate")


def test_loader_says_what_the_status_says(daemon, loader):
    measured(loader)
    found = loader.summary()
    (stream,) = status_object(read_report(daemon.paths))["streams"]
    assert found["stream"] == stream["name"]
    assert found["ring_batches"] == int(stream["ring"]["slots"] / max(1.0, stream["ring"]["slots_a_batch"]))
    assert str(found).startswith(f"Is it the data? {found['word']}: ")
    assert f"ready {found['ready_batches']}/" in str(found)
    assert set(loader.metrics()) <= {"prefetchd/stalled_share", "prefetchd/ready_batches", "prefetchd/batches_per_s"}
    assert loader.metrics()["prefetchd/batches_per_s"] > 0
    line = repr(loader)
    assert line.startswith("<PrefetchLoader '<i>train</i>', ready ")
    assert "\n" not in line
    card = loader._repr_html_()
    assert "&lt;i&gt;train&lt;/i&gt;" in card
    assert "<i>" not in card


def test_loader_without_a_daemon_has_a_summary(daemon):
    loader = PrefetchLoader(DATA, batch_size=4, num_workers=1, stream="train", seed=1)
    next(iter(loader))
    loader.close()
    daemon.command("stop")
    assert loader.summary()["verdict"] == "no daemon runs"
    assert loader.metrics() == {}
    assert "no daemon runs" in repr(loader)


def test_loader_in_its_own_process_says_so(daemon, monkeypatch):
    monkeypatch.setenv("PREFETCHD_INLINE", "1")
    loader = PrefetchLoader(DATA, batch_size=4, stream="train", seed=1)
    assert loader.summary()["verdict"] == "its batches are made in this process"
    assert "made in this process" in loader._repr_html_()


def test_loader_that_failed_to_begin_has_a_repr():
    assert repr(PrefetchLoader.__new__(PrefetchLoader)).startswith("<PrefetchLoader")


def test_progress_shows_waits_and_ready_batches(loader):
    measured(loader)
    written = io.StringIO()
    steps = sum(1 for _ in progress(loader, file=written, mininterval=0))
    assert steps > 0
    assert "ready " in written.getvalue()


def test_progress_gives_dataloader_s_batches(loader):
    found = [batch[0].tolist() for batch in progress(loader, disable=True)]
    assert found == [batch[0].tolist() for batch in DataLoader(DATA, batch_size=4)]
    assert len(progress(loader, disable=True)) == 1000


def test_plain_tqdm_takes_the_loader(loader):
    from tqdm import tqdm

    bar = tqdm(loader, file=io.StringIO())
    assert bar.total == len(loader)
    until(lambda: sum(1 for _ in bar) == len(loader), "an epoch")


def test_loader_does_not_show_another_stream_of_the_name_it_asked_for(daemon, monkeypatch):
    # As two processes that run the same script with other data.
    monkeypatch.setattr(loader_module, "default_stream_name", lambda number: "train.py:0")
    with PrefetchLoader(DATA, batch_size=4, num_workers=1, seed=1) as first:
        measured(first)
        with PrefetchLoader(TensorDataset(torch.zeros(8)), batch_size=2, num_workers=1) as second:
            assert second.summary()["batches_per_s"] is None
            next(iter(second))
            assert second.summary()["stream"] == "train.py:0#2"
