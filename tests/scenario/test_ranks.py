"""Two ranks under torchrun, one daemon: their shares are DistributedSampler's, or the plan's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.scenario import ranked_trainer, unshared_trainer
from tests.scenario.datasets import Numbers
from tests.scenario.oracle import epoch_batches

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("drop_last", [False, True], ids=["evened out", "dropped"])
def test_a_distributed_sampler_evens_out_or_drops_on_each_rank_as_with_dataloader(shared_daemon, drop_last):
    for rank in range(4):
        batches = []
        for kind in (DataLoader, PrefetchLoader):
            sampler = DistributedSampler(Numbers(50), 4, rank, seed=5, drop_last=drop_last)
            loader = kind(Numbers(50), batch_size=4, sampler=sampler)
            batches.append([index.tolist() for _ in range(2) for _, index in loader])
        assert batches[0] == batches[1]
        assert sum(map(len, batches[1])) == 2 * (12 if drop_last else 13)
        loader.close()


def test_a_share_that_is_known_later_is_as_if_it_was_given_before(shared_daemon):
    with (
        PrefetchLoader(Numbers(50), batch_size=4, shuffle=True, seed=2) as loader,
        PrefetchLoader(Numbers(50), batch_size=4, shuffle=True, seed=2, rank=1, world_size=2) as given,
    ):
        assert len(loader) == 13
        loader.share(1, 2)
        assert (loader.rank, loader.world_size, len(loader)) == (1, 2, 7)
        shares = [[index.tolist() for _, index in each] for each in (loader, given)]
        assert shares[0] == shares[1]
        loader.share(1, 2)
        assert loader.next_epoch == 1, "nothing has changed"


def test_a_sampler_makes_its_own_share(shared_daemon):
    sampler = DistributedSampler(Numbers(50), 2, 0, shuffle=False)
    with PrefetchLoader(Numbers(50), batch_size=25, sampler=sampler) as loader:
        loader.share(1, 2)
        assert next(iter(loader))[1].tolist() == list(range(0, 50, 2))


def two_ranks(daemon, trainer, directory: Path) -> list[dict]:
    """What each of two processes of `trainer` under torchrun has written down, rank by rank."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", trainer.__name__, str(directory)]
    environment = {**daemon.environment, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_ranks_that_ask_for_no_share_get_what_dataloader_gives_each_and_no_warning(shared_daemon, tmp_path):
    found = two_ranks(shared_daemon, unshared_trainer, tmp_path)
    for its in found:
        for told in ("torchrun", "group"):
            theirs, ours = its[told]["DataLoader"], its[told]["PrefetchLoader"]
            assert ours["lengths"] == theirs["lengths"]
            assert ours["epochs"].keys() == theirs["epochs"].keys()
            for name, batches in theirs["epochs"].items():
                assert ours["epochs"][name] == batches, f"{name}, as {told} tells of the ranks"
            whole = list(range(unshared_trainer.LENGTH))
            assert [index for batch in ours["epochs"]["plain"] for index in batch] == whole
            assert ours["epochs"]["shuffle"] == ours["epochs"]["random"] == whole


def test_two_ranks_under_torchrun_share_each_epoch(shared_daemon, tmp_path):
    found = two_ranks(shared_daemon, ranked_trainer, tmp_path)
    assert found[0]["stream"] != found[1]["stream"]
    for rank, its in enumerate(found):
        # Nothing is shared that nobody asked to share.
        assert its["all"] == {"DataLoader": list(range(50)), "PrefetchLoader": list(range(50))}
        for epoch in (0, 1):
            expected = epoch_batches(Numbers(50), epoch, batch_size=4, seed=3, shuffle=True, rank=rank, world_size=2)
            assert its["own"][epoch] == [index.tolist() for _, index in expected]
            sampler = DistributedSampler(Numbers(50), 2, rank, seed=5)
            sampler.set_epoch(epoch)
            theirs = DataLoader(Numbers(50), batch_size=4, sampler=sampler)
            assert its["sampled"][epoch] == [index.tolist() for _, index in theirs]
        assert its["len"] == len(its["own"][0]) == 7
    for epoch in (0, 1):
        both = [index for its in found for batch in its["own"][epoch] for index in batch]
        assert sorted(both) == list(range(50))
