"""Real clusters for tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.ray_nodes import RayNodes, enter_a_network_of_its_own, ray_cluster
from tests.conftest import Daemon, running_daemon
from tests.forking.client import close_servers


@pytest.fixture(scope="session", autouse=True)
def network() -> str:
    """The network of their own that all tests here are in; empty, or why there is none."""
    why_not = enter_a_network_of_its_own()
    # Interpreters are forked from servers, which are where the tests were.
    close_servers()
    return why_not


@pytest.fixture(scope="session")
def ray_nodes(network: str) -> Iterator[RayNodes]:
    """A cluster with two nodes beside the head."""
    if network:
        pytest.skip(network)
    with ray_cluster(2) as found:
        yield found


@pytest.fixture
def ray_daemon(ray_nodes: RayNodes, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon that knows the cluster."""
    with running_daemon(tmp_path) as daemon:
        daemon.start("--ray", ray_nodes.address)
        yield daemon
