"""A cluster whose Python or Ray is another one than the trainer's."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cluster.ray_nodes import RayNodes
from tests.cluster.test_no_cluster import goes_on_until, told

# Where a cluster notes what it was started with, for those who join to compare.
KEY, NAMESPACE = b"CLUSTER_METADATA", b"cluster"

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=["python_version", "ray_version"])
def another_version(request: pytest.FixtureRequest, ray_nodes: RayNodes) -> Iterator[str]:
    """The cluster says that it was started with this one."""
    from ray._raylet import GcsClient

    kept = GcsClient(address=ray_nodes.address)
    before = kept.internal_kv_get(KEY, NAMESPACE)
    noted = json.loads(before)
    assert noted[request.param]
    kept.internal_kv_put(KEY, json.dumps(noted | {request.param: "3.0.1"}).encode(), True, NAMESPACE)
    yield "3.0.1"
    kept.internal_kv_put(KEY, before, True, NAMESPACE)


def test_both_versions_are_named_and_all_is_made_here(ray_daemon, capfd, another_version):
    goes_on_until(told(capfd, "does not take this machine: Version mismatch: The cluster was started with: Ray: "))
    log = ray_daemon.command("logs", "--lines", "50").stdout
    (line,) = [line for line in log.splitlines() if "bridge ended" in line]
    assert f": {another_version} " in line
    assert "This process on" in line
    assert "is_final=True" in line
