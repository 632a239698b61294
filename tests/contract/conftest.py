"""The backends that the contract is held against, each on a stage of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefetchd.wire.runtime_paths import runtime_paths
from tests.contract.backend_harness import STARTS, Stage


@pytest.fixture(scope="package", params=STARTS)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(request.param, runtime_paths(tmp_path_factory.mktemp("backend") / "d.sock"))
    yield made
    made.close()


@pytest.fixture
def executing_stage(stage: Stage) -> Stage:
    if stage.start != "executed":
        pytest.skip("nothing is loaded in a fork of the trainer")
    return stage


@pytest.fixture
def forking_stage(stage: Stage) -> Stage:
    if stage.start != "forked":
        pytest.skip("it is about forks of the trainer")
    return stage
