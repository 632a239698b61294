"""What a backend promises of filling holds for remote workers: these are tests of the contract, on another stage.

What a remote worker is not asked for is left out: to measure, parts of batches, batches in several slots, digests.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from prefetchd.wire.runtime_paths import runtime_paths
from tests.cluster.ray_nodes import RayNodes
from tests.cluster.remote_stage import RemoteStage
from tests.contract.test_backend_filling import (
    test_a_batch_that_is_too_large_is_told_with_its_size,
    test_a_row_that_deviates_is_unfit_without_a_size_and_the_batch_is_made_whole,
    test_a_sample_that_raises_fails_its_task_and_no_other,
    test_batches_that_one_worker_fills_are_the_same_by_any,
    test_other_batches_are_measured_and_filled_whole,
    test_samples_that_hide_their_draws_are_seeded_as_well,
)

__all__ = [
    "test_a_batch_that_is_too_large_is_told_with_its_size",
    "test_a_row_that_deviates_is_unfit_without_a_size_and_the_batch_is_made_whole",
    "test_a_sample_that_raises_fails_its_task_and_no_other",
    "test_batches_that_one_worker_fills_are_the_same_by_any",
    "test_other_batches_are_measured_and_filled_whole",
    "test_samples_that_hide_their_draws_are_seeded_as_well",
]

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stage(ray_nodes: RayNodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteStage]:
    made = RemoteStage(ray_nodes.address, runtime_paths(tmp_path_factory.mktemp("remote") / "d.sock"))
    yield made
    made.close()
