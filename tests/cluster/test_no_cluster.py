"""A loader that asks for remote workers where there can be none: its batches are made here, and it is told why not."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from prefetchd_client import PrefetchLoader

from tests.cluster.datasets import Slow
from tests.conftest import Daemon

LENGTH = 160


def told(capfd, words: str) -> Callable[[], bool]:
    """Whether these words were on stderr by now."""
    heard: list[str] = []

    def look() -> bool:
        heard.append(capfd.readouterr().err)
        return words in "".join(heard)

    return look


def goes_on_until(holds: Callable[[], bool], dataset: Slow | None = None) -> None:
    """Epochs of a loader that asks for remote workers, until holds() is true; all of them are whole."""
    options = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2, "remote_workers": 2}
    loading = PrefetchLoader(dataset or Slow(LENGTH), **options)
    try:
        for _ in range(40):
            assert sorted(index for _, y in loading for index in y.tolist()) == list(range(LENGTH))
            if holds():
                return
        raise AssertionError("not told within 40 epochs")
    finally:
        loading.close()


def test_at_an_address_where_nobody_answers(daemon: Daemon, capfd):
    daemon.start("--ray", "127.0.0.1:1")
    goes_on_until(told(capfd, "no Ray cluster answers at 127.0.0.1:1: Connection refused; it is tried again"))


def test_without_ray(daemon: Daemon, capfd, tmp_path, listening, monkeypatch):
    (tmp_path / "modules" / "ray").mkdir(parents=True)
    (tmp_path / "modules" / "ray" / "__init__.py").write_text("raise ImportError('there is no Ray here')\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "modules"), *sys.path])
    daemon.start("--ray", listening)
    goes_on_until(told(capfd, "Ray cannot be imported in the trainer's interpreter (there is no Ray here)"))


def test_of_a_daemon_that_knows_no_cluster(daemon: Daemon, capfd):
    daemon.start()
    goes_on_until(
        told(capfd, "there are no remote workers: this daemon knows no Ray cluster: prefetchd run --ray ADDRESS")
    )


def test_of_samples_that_are_cheap_nobody_is_told(daemon: Daemon, capfd):
    daemon.start("--ray", "127.0.0.1:1")
    heard = told(capfd, "remote")
    with pytest.raises(AssertionError, match="not told"):
        goes_on_until(heard, Slow(LENGTH, sample_s=0.0))


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "head:6379"])
def test_a_cluster_that_others_reach_and_anybody_may_use_is_refused_at_the_start(daemon: Daemon, address):
    refused = daemon.command("run", "--ray", address, check=False)
    assert refused.returncode == 1
    for named in ("RAY_AUTH_MODE=token", "RAY_USE_TLS=1", "ray_insecure = true"):
        assert named in refused.stderr


@pytest.mark.parametrize("address", ["head", "ray://head:10001", "head:port"])
def test_what_is_no_address_is_refused_at_the_start(daemon: Daemon, address):
    refused = daemon.command("run", "--ray", address, check=False)
    assert refused.returncode == 1
    assert f"ray is {address!r}; allowed: 'auto', or HOST:PORT" in refused.stderr
