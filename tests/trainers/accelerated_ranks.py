"""One of two ranks that accelerate has made a group of: takes epochs, gathers, writes down what it got. Run as a
script."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard
from prefetchd_client import PrefetchLoader
from prefetchd_client.errors import CallerError
from prefetchd_client.integrations.accelerate import prepare
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from tests.scenario.datasets import Numbers

SAMPLES, ROWS = 45, 4


def main(directory: str) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    found: dict[str, Any] = {"total": accelerator.num_processes}
    with PrefetchLoader(Numbers(SAMPLES), batch_size=ROWS, shuffle=True, seed=3) as loader:
        prepared = prepare(accelerator, loader)
        found["own"] = [[index.tolist() for _, index in prepared] for _ in range(2)]
        found["total_batch_size"] = prepared.total_batch_size
        found["gathered"] = [accelerator.gather_for_metrics(index).tolist() for _, index in prepared]
    shard = BatchSamplerShard(
        BatchSampler(SequentialSampler(range(SAMPLES)), ROWS, False),
        accelerator.num_processes,
        accelerator.process_index,
    )
    with PrefetchLoader(Numbers(SAMPLES), batch_sampler=shard) as loader:
        found["sharded"] = _gathered(accelerator, prepare(accelerator, loader))
    plain = accelerator.prepare(DataLoader(Numbers(SAMPLES), batch_size=ROWS))
    found["plain"] = _gathered(accelerator, plain)
    found["trained"] = _trained(accelerator)
    with PrefetchLoader(Numbers(SAMPLES), batch_size=ROWS, sampler=list(range(SAMPLES))) as loader:
        try:
            prepare(accelerator, loader)
        except CallerError as error:
            found["refused"] = str(error)
    accelerator.wait_for_everyone()
    Path(directory, f"{accelerator.process_index}.json").write_text(json.dumps(found))
    accelerator.end_training()


def _gathered(accelerator: Accelerator, loader: Any) -> list[Any]:
    return [[index.tolist(), accelerator.gather_for_metrics(index).tolist()] for _, index in loader]


def _trained(accelerator: Accelerator) -> list[float]:
    """The weight that both ranks have after an epoch; steps that are synchronised wrongly hang or differ."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with PrefetchLoader(Numbers(SAMPLES), batch_size=ROWS, shuffle=True, seed=3) as loader:
        model, optimizer, prepared = accelerator.prepare(model, optimizer, prepare(accelerator, loader))
        for numbers, index in prepared:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(numbers.float()).squeeze(1), index.float())
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    return [value for parameter in model.parameters() for value in parameter.flatten().tolist()]


if __name__ == "__main__":
    main(sys.argv[1])
