"""What is said where a cluster is full, loses this machine, or has a node without prefetchd."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

from tests.cluster.datasets import Slow
from tests.cluster.ray_nodes import RayNodes, ray_cluster
from tests.cluster.test_remote_batches import loader, made_elsewhere, remote_of
from tests.conftest import Daemon

pytestmark = pytest.mark.timeout(200)

NOT_INSTALLED = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "prefetchd":
            raise ModuleNotFoundError("No module named 'prefetchd'", name="prefetchd")

sys.meta_path.insert(0, NotInstalled())
"""


def endless(loading) -> Iterator:
    while True:
        yield from loading


def test_a_node_without_prefetchd_is_named_with_the_remedy(ray_daemon: Daemon, ray_nodes: RayNodes, tmp_path, capfd):
    (tmp_path / "sitecustomize.py").write_text(NOT_INSTALLED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path))
        ray_nodes.add()
    said = ""
    try:
        with loader(Slow(), remote_workers=6) as loading:
            batches = endless(loading)
            while "no module prefetchd on node 127.0.0.1: pip install it there" not in said:
                next(batches)
                said += capfd.readouterr().err
            batches.close()
    finally:
        ray_nodes.remove()
    assert "\x1b" not in said


def test_workers_come_where_they_may_be_and_to_gpus_if_allowed(ray_daemon: Daemon, ray_nodes: RayNodes, capfd):
    """The node that has the resource has a GPU, too."""
    ray_nodes.add(num_gpus=1, resources={"fast_disk": 1.0})
    try:
        said = ""
        with loader(Slow(), remote_workers=2, remote_resources={"fast_disk": 0.5}) as loading:
            batches = endless(loading)
            while "has GPUs, whose trainers need its CPUs: remote_resources={'gpu_nodes': True} allows it" not in said:
                next(batches)
                said += capfd.readouterr().err
            assert made_elsewhere(ray_daemon) == 0
            batches.close()
        allowed = {"fast_disk": 0.5, "gpu_nodes": True, "memory": "100MB"}
        with loader(Slow(), remote_workers=2, remote_resources=allowed, seed=4) as loading:
            batches = endless(loading)
            while made_elsewhere(ray_daemon) < 10:
                next(batches)
            batches.close()
        assert len([node for node in remote_of(ray_daemon)["nodes"] if node["batches"]]) == 1
    finally:
        ray_nodes.remove()


def test_what_is_waited_for_and_why_the_bridge_ended_are_said(network: str, daemon: Daemon):
    """A cluster of this machine alone, which has no CPUs, and whose raylet is killed then."""
    if network:
        pytest.skip(network)
    with contextlib.ExitStack() as ending:
        nodes = ending.enter_context(ray_cluster(0))
        daemon.start("--ray", nodes.address)
        batches = endless(ending.enter_context(loader(Slow())))
        next(batches)
        while remote_of(daemon)["waits_for"] != "waiting for 1 CPU on one node; no node has CPUs":
            next(batches)
        os.kill(nodes.raylet, 9)
        while "its raylet is gone" not in remote_of(daemon)["why_not"]:
            next(batches)
        batches.close()
