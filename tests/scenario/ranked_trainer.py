"""One rank of a training under torchrun: takes epochs and writes down what it got. Run as a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tests.scenario.datasets import Numbers


def main(directory: str) -> None:
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    found = {}
    found["all"] = {
        kind.__name__: sorted(int(index) for _, indices in kind(Numbers(50), batch_size=4) for index in indices)
        for kind in (DataLoader, PrefetchLoader)
    }
    with PrefetchLoader(Numbers(50), batch_size=4, shuffle=True, seed=3, rank="auto") as loader:
        found["own"] = [[index.tolist() for _, index in loader] for _ in range(2)]
        found["len"] = len(loader)
        found["stream"] = loader.stats()["stream"]
    sampler = DistributedSampler(Numbers(50), seed=5)
    with PrefetchLoader(Numbers(50), batch_size=4, sampler=sampler) as loader:
        found["sampled"] = []
        for epoch in range(2):
            sampler.set_epoch(epoch)
            found["sampled"].append([index.tolist() for _, index in loader])
    torch.distributed.barrier()
    Path(directory, f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
