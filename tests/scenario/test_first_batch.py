"""What is done before a loader's first batch, and what is not."""

from __future__ import annotations

import importlib.metadata
import os
import signal

import pytest
import torch
from prefetchd_client import PrefetchLoader
from prefetchd_client.fingerprint import module_sources, quick_walk
from prefetchd_client.forking.fork_work import ForkWork
from prefetchd_client.session import handshake

from prefetchd.wire.errors import StreamFailedError
from prefetchd.workers import forked_zygote
from tests.scenario.datasets import Numbers
from tests.scenario.waiting import is_gone, stream_when, until


@pytest.fixture
def identified(tmp_path, monkeypatch):
    """A file for each fork that has begun to take its fingerprint, which waits while there is one called "wait"."""
    identify = ForkWork.identify

    def note(work):
        (tmp_path / f"fork of {os.getppid()}").touch()
        until(lambda: not (tmp_path / "wait").exists(), "it may tell")
        return identify(work)

    monkeypatch.setattr(ForkWork, "identify", note)
    # Of its own accord no fork does while a test lasts.
    monkeypatch.setattr(forked_zygote, "IDENTIFY_AFTER_S", 3600.0)
    monkeypatch.setattr(forked_zygote, "IDENTIFY_WITHIN_S", 3600.0)
    return lambda: list(tmp_path.glob("fork of *"))


def ring_of(loader: PrefetchLoader) -> int:
    """When the ring was made that its batches come out of: no two are made at once."""
    return loader._sessions.current.attachment.ring.header.created_ns


def test_the_constructor_asks_for_no_package_and_digests_nothing(shared_daemon, monkeypatch, identified):
    """Found as a constructor that parsed the metadata of twenty packages: half of its time."""
    asked, distribution, trainer = [], importlib.metadata.distribution, os.getpid()

    def ask(name):
        if os.getpid() == trainer:
            asked.append(name)
        return distribution(name)

    monkeypatch.setattr(importlib.metadata, "distribution", ask)
    module_sources._required_versions.cache_clear()
    module_sources._recorded_version.cache_clear()
    with PrefetchLoader(Numbers(40), batch_size=4, buffer=6, fresh=True) as loader:
        next(iter(loader))
        assert not asked
        assert not identified()
        assert loader.fingerprint
        assert len(identified()) == 1


def test_a_rerun_does_not_wait_for_its_fork(shared_daemon, tmp_path, monkeypatch, identified):
    monkeypatch.setattr(quick_walk, "WITHIN_S", 3600.0)
    tensors = torch.arange(400)
    with PrefetchLoader(tensors, batch_size=4, buffer=12) as loader:
        first, ring = next(iter(loader)).clone(), ring_of(loader)
        name = loader.stats()["stream"]
    stream_when(shared_daemon, name, lambda stream: stream["lingering"] and stream["fingerprint"] != "f" * 32)
    (tmp_path / "wait").touch()
    with PrefetchLoader(tensors, batch_size=4, buffer=12) as loader:
        assert torch.equal(next(iter(loader)), first)
        assert ring_of(loader) == ring
        (tmp_path / "wait").unlink()


def test_what_is_left_of_another_dataset_is_not_taken_for_a_quick_fingerprint(shared_daemon, monkeypatch):
    monkeypatch.setattr(quick_walk, "WITHIN_S", 3600.0)
    for add in range(3):
        with PrefetchLoader(torch.arange(400) + add, batch_size=4, buffer=12) as loader:
            assert next(iter(loader)).tolist() == [add, add + 1, add + 2, add + 3]
            name = loader.stats()["stream"]
        stream_when(shared_daemon, name, lambda stream: stream["lingering"])


@pytest.mark.parametrize("changes", [True, False])
def test_a_fork_that_dies_before_it_was_identified_is_made_again_of_the_same_dataset_only(
    shared_daemon, identified, changes
):
    dataset = Numbers(80)
    with PrefetchLoader(dataset, batch_size=4, num_workers=2, buffer=6, fresh=True) as loader:
        iterator = iter(loader)
        found = [next(iterator)]
        assert not identified()
        fork = loader._sessions.current.fork
        os.kill(fork.pid, signal.SIGKILL)
        # Its workers go on until it is.
        until(lambda: is_gone(fork.pid), "it is dead")
        if changes:
            dataset.of_another_kind = True
            with pytest.raises(StreamFailedError, match="has been changed since its batches were begun"):
                list(iterator)
        else:
            found += list(iterator)
            assert len(found) == 20


def test_a_daemon_that_comes_while_one_is_about_to_be_started_is_connected_to(daemon, monkeypatch):
    """Found under load: the connection to it was dropped without being closed."""
    daemon.start()
    found = iter([None])
    monkeypatch.setattr(handshake, "connect", lambda paths: next(found, None))
    pid = daemon.pid
    with PrefetchLoader(Numbers(40), batch_size=4, fresh=True) as loader:
        next(iter(loader))
        assert loader._sessions.current.fork is not None
    assert daemon.pid == pid
