"""A cluster with a token and TLS: who has both gets batches, and others are told what is missing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import secured
from tests.cluster.test_no_cluster import goes_on_until, told
from tests.cluster.test_remote_batches import made_elsewhere
from tests.conftest import Daemon

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def variables(network: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if network:
        pytest.skip(network)
    if shutil.which("openssl") is None:
        pytest.skip("no openssl, which makes certificates")
    secured.add_address()
    return secured.make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def address(variables: dict[str, str]) -> Iterator[str]:
    # Sockets' names below it are to stay short.
    with (
        tempfile.TemporaryDirectory(prefix="pf-ray-", dir="/tmp") as directory,
        secured.secured_cluster(variables, Path(directory)) as found,
    ):
        yield found


def test_who_has_both_gets_batches(daemon: Daemon, address, variables):
    daemon.environment.update(variables)
    daemon.start("--ray", address)
    goes_on_until(lambda: made_elsewhere(daemon) >= 10)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"RAY_AUTH_TOKEN": "0" * 64}, "Authentication token is missing or incorrect"),
        ({"RAY_USE_TLS": "0"}, "do RAY_AUTH_MODE, RAY_USE_TLS and what belongs to them agree with the cluster's"),
    ],
    ids=["token", "TLS"],
)
def test_who_has_not_is_told_what_may_be_wrong(daemon: Daemon, address, variables, wrong, words, capfd):
    daemon.environment.update(variables | wrong)
    daemon.start("--ray", address, *(["--ray-insecure"] if "RAY_USE_TLS" in wrong else []))
    goes_on_until(told(capfd, words))
