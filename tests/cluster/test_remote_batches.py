"""Batches of other machines are those of this one, whatever dies, hangs or differs."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest
from prefetchd_client import PrefetchLoader

from prefetchd.status.snapshot import read_report
from tests.cluster.datasets import Files, Slow, as_pairs
from tests.cluster.ray_nodes import RayNodes
from tests.conftest import Daemon
from tests.scenario.waiting import until
from tests.unit.docs.status_keys import documented_keys

REMOTE = 4
MOST_EPOCHS = 20

pytestmark = pytest.mark.timeout(300)


def loader(dataset: Slow | Files, **options) -> PrefetchLoader:
    given = {"batch_size": 8, "shuffle": True, "seed": 3, "num_workers": 2, "remote_workers": REMOTE, "buffer": 64}
    return PrefetchLoader(dataset, **(given | options))


def values(batch) -> tuple[list, list]:
    x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
    return x.flatten().tolist(), y.tolist()


def remote_of(daemon: Daemon) -> dict:
    """What the stream has on other machines, by the status of this moment."""

    def look() -> dict | None:
        snapshot = read_report(daemon.paths).snapshot
        streams = snapshot["streams"] if snapshot is not None else []
        return streams[0]["remote"] if streams else None

    return until(look, "a stream")


def made_elsewhere(daemon: Daemon) -> int:
    return sum(node["batches"] for node in remote_of(daemon)["nodes"])


def workers_there() -> list[psutil.Process]:
    """The workers of actors, but for those that end just now."""
    found = []
    for actor in RayNodes.actors():
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [each for each in actor.children(recursive=True) if each.name().startswith("prefetchd-w")]
    return found


class Run:
    """A trainer that goes over epoch after epoch, and checks each batch against those that are made in this very
    process, without a daemon."""

    def __init__(self, daemon: Daemon, dataset: Slow | Files, **options) -> None:
        self.daemon = daemon
        self.loader = loader(dataset, **options)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFETCHD_INLINE", "1")
            self._alone = loader(self.alone(dataset), **(options | {"remote_workers": 0}))
            self._expected = self._epochs(self._alone)
            next(self._expected)
        self._found = self._epochs(self.loader)
        self.batches = 0
        next(self._found)

    @staticmethod
    def alone(dataset: Slow | Files) -> Slow | Files:
        """The dataset whose batches are the right ones, and that takes no time."""
        if isinstance(dataset, Files):
            return Files(dataset.directory, dataset.length, sample_s=0.0)
        return Slow(dataset.length, sample_s=0.0)

    @staticmethod
    def _epochs(loading: PrefetchLoader) -> Iterator:
        yield
        for _ in range(MOST_EPOCHS):
            yield from map(values, loading)

    def goes_on_until(self, holds: Callable[[], object], what: str) -> None:
        """Takes batches until holds() is true."""
        while not holds():
            self.takes(10, what)

    def takes(self, batches: int, what: str = "") -> None:
        for _ in range(batches):
            found = next(self._found, None)
            assert found is not None, f"not within {MOST_EPOCHS} epochs: {what}"
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("PREFETCHD_INLINE", "1")
                assert found == next(self._expected), f"batch {self.batches}"
            self.batches += 1

    def comes(self) -> None:
        """Remote workers make batches, which are found equal."""
        self.goes_on_until(
            lambda: (
                remote_of(self.daemon)["ready"] == REMOTE
                and all(node["proved"] for node in remote_of(self.daemon)["nodes"])
            ),
            "all remote workers, on nodes that are proved",
        )

    def close(self) -> None:
        self._found.close()
        self._expected.close()
        self.loader.close()
        self._alone.close()


@pytest.fixture
def run(ray_daemon: Daemon) -> Iterator[Callable[..., Run]]:
    with contextlib.ExitStack() as ending:

        def begin(dataset: Slow | Files, **options) -> Run:
            found = Run(ray_daemon, dataset, **options)
            ending.callback(found.close)
            return found

        yield begin


@pytest.mark.parametrize("collate_fn", [None, as_pairs], ids=["rows", "whole"])
def test_they_are_the_same_in_the_same_order(ray_daemon, run, collate_fn):
    trainer = run(Slow(), collate_fn=collate_fn)
    trainer.comes()
    before = made_elsewhere(ray_daemon)
    trainer.goes_on_until(lambda: made_elsewhere(ray_daemon) > before + 60, "60 batches from other machines")
    nodes = [node for node in remote_of(ray_daemon)["nodes"] if node["batches"]]
    assert len(nodes) == 2, "both nodes take part"
    prefix = "streams[].remote.nodes[]."
    documented = {key.removeprefix(prefix) for key in documented_keys() if key.startswith(prefix)}
    assert set(nodes[0]) == documented
    assert not any(node["mismatches"] for node in nodes)


def test_an_actor_a_bridge_and_the_daemon_may_be_killed(ray_daemon, run):
    trainer = run(Slow())
    trainer.comes()
    actor = RayNodes.actors()[0]
    actor.kill()
    until(lambda: not actor.is_running() or actor.status() == psutil.STATUS_ZOMBIE, "the actor is dead")
    trainer.goes_on_until(lambda: sum(node["lost"] for node in remote_of(ray_daemon)["nodes"]), "batches are lost")
    trainer.comes()
    (bridge,) = [each for each in ray_daemon.processes() if each.name().startswith("prefetchd-ray")]
    bridge.kill()
    trainer.goes_on_until(lambda: remote_of(ray_daemon)["bridge"] == "open", "another bridge")
    trainer.comes()
    daemon = ray_daemon.pid
    os.kill(daemon, signal.SIGKILL)
    # The trainer starts the next one, as docs/cluster.md has started the first.
    trainer.takes(100)
    trainer.comes()
    assert ray_daemon.pid != daemon


def test_a_machine_that_hangs_is_not_waited_for(ray_daemon, run):
    trainer = run(Slow())
    trainer.comes()
    frozen = [each for actor in RayNodes.actors() for each in [actor, *actor.children(recursive=True)]]
    for process in frozen:
        process.suspend()
    try:
        # Longer than all that the ring holds: what they had in hand among it.
        trainer.takes(200)
        remote = remote_of(ray_daemon)
        assert remote["hedges_won"] > 0
        assert remote["late"] > 0
    finally:
        for process in frozen:
            process.resume()
    trainer.goes_on_until(lambda: not remote_of(ray_daemon)["late"], "they answer")
    before = made_elsewhere(ray_daemon)
    trainer.goes_on_until(lambda: made_elsewhere(ray_daemon) > before, "and make more")


def test_a_worker_that_hangs_at_a_sample_makes_others_later(ray_daemon, run):
    """Half a minute later (bridge, rule 5)."""
    trainer = run(Slow(odd="hangs", sample_s=0.04))
    trainer.goes_on_until(lambda: remote_of(ray_daemon)["late"], "a batch that hangs is taken back")
    hanging = set(workers_there())
    trainer.goes_on_until(lambda: hanging - set(workers_there()), "one that hangs is ended")
    before = made_elsewhere(ray_daemon)
    trainer.goes_on_until(lambda: made_elsewhere(ray_daemon) > before, "and more is made there")


def test_a_node_that_makes_other_batches_is_not_used(ray_daemon, run):
    trainer = run(Slow(odd="differs"))
    trainer.goes_on_until(
        lambda: sum(node["distrusted"] for node in remote_of(ray_daemon)["nodes"]) == 2, "both nodes are found out"
    )
    before = made_elsewhere(ray_daemon)
    trainer.takes(100)
    assert made_elsewhere(ray_daemon) == before


def test_an_image_without_a_module_of_the_dataset_is_named_and_not_used(ray_daemon, run, capfd):
    trainer = run(Slow(odd="is missing"))
    said = []

    def is_told() -> bool:
        said.append(capfd.readouterr().err)
        return "cannot make these batches: ModuleNotFoundError: No module named 'theirs'" in "".join(said)

    trainer.goes_on_until(is_told, "the trainer is told")
    trainer.takes(50)
    assert remote_of(ray_daemon)["ready"] == 0
    assert "No module named 'theirs'" in remote_of(ray_daemon)["why_not"]


@pytest.mark.parametrize("odd", ["raises", "dies"])
def test_what_fails_on_other_machines_alone_is_made_here(ray_daemon, run, odd):
    trainer = run(Slow(odd=odd))
    trainer.goes_on_until(lambda: remote_of(ray_daemon)["ready"] == REMOTE, "remote workers")
    trainer.takes(200)
    if odd == "raises":
        assert "/data/" in ray_daemon.command("logs", "--lines", "200").stdout
