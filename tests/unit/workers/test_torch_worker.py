"""DataLoader's worker as the user's code and torch see it, for as long as it lasts."""

from __future__ import annotations

import torch
import torch.utils.data._utils.collate as torch_collate
from torch.utils.data import default_collate, get_worker_info

from prefetchd.plan.seeds import worker_seed
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.program import Program
from prefetchd.workers.torch_worker import as_torch_worker

SPEC = StreamSpec("0" * 32, seed=11, order="sequential", length=3, batch_size=1)


def test_get_worker_info_answers_within_and_only_there():
    program = Program([1, 2, 3])
    assert get_worker_info() is None
    with as_torch_worker(SPEC, program, 1, 4):
        info = get_worker_info()
        assert (info.id, info.num_workers, info.seed) == (1, 4, worker_seed(11, 1, 0))
        assert info.dataset is program.dataset
        with as_torch_worker(SPEC, Program([]), 2, 4):
            assert get_worker_info().id == 2
            assert get_worker_info().seed != info.seed
        assert get_worker_info() is info
    assert get_worker_info() is None


def test_default_collate_stays_out_of_shared_memory():
    usual = torch_collate.default_collate_fn_map[torch.Tensor]
    samples = [{"x": torch.ones(2), "y": (torch.zeros(1), 1)}] * 3
    with as_torch_worker(SPEC, Program([]), 0, 1):
        batch = default_collate(samples)
        assert get_worker_info() is not None, "collating does not end it"
        assert torch.equal(batch["x"], torch.ones(3, 2))
        assert not batch["x"].is_shared()
        assert not batch["y"][0].is_shared()
    assert torch_collate.default_collate_fn_map[torch.Tensor] is usual


def test_an_exception_within_ends_it():
    usual = torch_collate.default_collate_fn_map[torch.Tensor]
    try:
        with as_torch_worker(SPEC, Program([]), 0, 1):
            default_collate([torch.ones(1), torch.ones(2)])
    except RuntimeError:
        pass
    assert get_worker_info() is None
    assert torch_collate.default_collate_fn_map[torch.Tensor] is usual
