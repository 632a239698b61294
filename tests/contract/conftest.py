"""The backends that the contract is held against, each on a stage of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefetchd.wire.runtime_paths import runtime_paths
from tests.contract.backend_harness import BACKENDS, Stage


@pytest.fixture(scope="package", params=BACKENDS)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(BACKENDS[request.param], runtime_paths(tmp_path_factory.mktemp("backend") / "d.sock"))
    yield made
    made.close()


@pytest.fixture
def process_stage(stage: Stage, request: pytest.FixtureRequest) -> Stage:
    if "inline" in request.node.callspec.id:
        pytest.skip("there is no process to be killed")
    return stage
