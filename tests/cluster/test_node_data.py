"""A node whose data differs gives no wrong batch, and a node without the data costs little."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from prefetchd.daemon.engine.stream.remote_work import FAILURES_BORNE
from tests.cluster.datasets import Files
from tests.cluster.ray_nodes import RayNodes
from tests.cluster.test_remote_batches import made_elsewhere, remote_of, run
from tests.scenario.waiting import until

__all__ = ["run"]

pytestmark = pytest.mark.timeout(300)

FILES = 400
DIFFERING = range(7, FILES, 20)
LONG_AGO_NS = time.time_ns() - 10**12
WORKERS = 6
"""Three actors on three nodes."""


def write(directory: Path, numbers: Callable[[int], int]) -> Path:
    directory.mkdir()
    for index in range(FILES):
        path = directory / f"{index}.bin"
        path.write_bytes(numbers(index).to_bytes(4, "little") * 4)
        os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return directory


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write(tmp_path / "data", lambda index: 1000 + index)


@pytest.fixture
def node_with(ray_nodes: RayNodes, data: Path) -> Iterator[Callable[[Path], None]]:
    added = []

    def add(there: Path) -> None:
        ray_nodes.add_with(there, data)
        added.append(there)

    yield add
    for _ in added:
        ray_nodes.remove()


def read_stderr(capfd, said: list[str]) -> str:
    said.append(capfd.readouterr().err)
    return "".join(said)


def test_a_node_whose_files_differ_in_part_is_excluded(ray_daemon, run, node_with, data, tmp_path, capfd):
    """All files have the size that they have here, and other times; 20 of 400 have other bytes."""
    there = write(tmp_path / "there", lambda index: 1000 + index + 5000 * (index in DIFFERING))
    for path in there.iterdir():
        os.utime(path, ns=(LONG_AGO_NS + 10**9, LONG_AGO_NS + 10**9))
    node_with(there)
    trainer, said = run(Files(str(data), FILES), remote_workers=WORKERS), []
    trainer.goes_on_until(lambda: "makes other batches" in read_stderr(capfd, said), "the trainer is told")
    (line,) = [line for line in "".join(said).splitlines() if "makes other batches" in line]
    assert f"{data}/" in line
    assert "differs in its time of change and its bytes" in line
    (odd,) = until(
        lambda: [node for node in remote_of(ray_daemon)["nodes"] if node["distrusted"]], "the status says so"
    )
    before = made_elsewhere(ray_daemon)
    trainer.goes_on_until(lambda: made_elsewhere(ray_daemon) > before + 20, "the other nodes make more")
    assert {node["name"]: node["batches"] for node in remote_of(ray_daemon)["nodes"]}[odd["name"]] == odd["batches"]


def test_a_node_without_the_files_is_paused_and_named(ray_daemon, run, node_with, data, tmp_path, capfd):
    (tmp_path / "empty").mkdir()
    node_with(tmp_path / "empty")
    trainer, said = run(Files(str(data), FILES), remote_workers=WORKERS), []
    trainer.goes_on_until(lambda: "it gets no batch for" in read_stderr(capfd, said), "the trainer is told")
    trainer.takes(200)
    (paused,) = [node for node in remote_of(ray_daemon)["nodes"] if node["why"]]
    assert f"node {paused['name']} cannot make batches" in paused["why"]
    assert "FileNotFoundError" in paused["why"]
    assert f"{data}/" in paused["why"]
    assert paused["batches"] == 0
    log = ray_daemon.command("logs", "--lines", "400").stdout
    assert log.count("samples fail on another machine") == FAILURES_BORNE
