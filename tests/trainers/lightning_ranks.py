"""Two ranks that Lightning itself starts, by running this script again. Arguments: a directory, and how."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy
from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

from tests.scenario.datasets import Numbers
from tests.trainers.lightning_module import Noting, trainer

SAMPLES, ROWS, EPOCHS = 45, 4, 2
# In the middle of the second epoch.
SAVED_AFTER = 8


class MakingItsLoader(Noting):
    def train_dataloader(self) -> Any:
        return made(PrefetchLoader, seed=3, buffer=8, rank="auto")


def made(kind: Any, **extra: Any) -> Any:
    return kind(Numbers(SAMPLES), batch_size=ROWS, shuffle=True, **extra)


def main(directory: str, how: str) -> None:
    strategy = DDPStrategy(process_group_backend="gloo")
    settings: dict[str, Any] = {"devices": 2, "strategy": strategy, "max_epochs": EPOCHS}
    saving = ModelCheckpoint(directory, filename="saved", every_n_train_steps=SAVED_AFTER)
    if how == "replaced":
        settings |= {"callbacks": [saving], "enable_checkpointing": True}
    run = trainer(directory, use_distributed_sampler=how in ("theirs", "replaced", "resumed"), **settings)
    found: dict[str, Any] = {}
    if how == "made in the hook":
        module: Noting = MakingItsLoader()
        run.fit(module)
    else:
        module = Noting()
        own = {"rank": 0, "world_size": 3} if how == "another's share" else {}
        loader = made(DataLoader) if how == "theirs" else made(PrefetchLoader, seed=3, buffer=8, **own)
        try:
            path = Path(directory, "..", "saved.ckpt") if how == "resumed" else None
            run.fit(module, loader, ckpt_path=path)
        except ValueError as error:
            found["error"] = f"{type(error).__name__}: {error}"
    found |= {"seen": module.seen, "weights": [each.tolist() for each in module.parameters()]}
    if run.train_dataloader is not None:
        found["kind"] = type(run.train_dataloader).__name__
        found["buffer"] = getattr(getattr(run.train_dataloader, "spec", None), "buffer_batches", None)
    Path(directory, f"{run.global_rank}.json").write_text(json.dumps(found))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
