"""The smallest module that trains, and notes what it was given."""

from __future__ import annotations

from typing import Any

import lightning
import torch


class Noting(lightning.LightningModule):
    """`seen`: (epoch, step, indices) of each training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.seen: list[Any] = []
        self.validated: list[Any] = []

    def training_step(self, batch: Any, step: int) -> torch.Tensor:
        numbers, index = batch
        self.seen.append([self.current_epoch, step, index.tolist()])
        return torch.nn.functional.mse_loss(self.layer(numbers.float()).squeeze(1), index.float())

    def validation_step(self, batch: Any, step: int) -> None:
        self.validated.append(batch[1].tolist())

    def predict_step(self, batch: Any, step: int) -> Any:
        return batch[1].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def trainer(directory: Any, **arguments: Any) -> lightning.Trainer:
    """On one CPU, quiet, if not told otherwise."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    defaults = {"accelerator": "cpu", "devices": 1, "default_root_dir": directory, "enable_checkpointing": False}
    return lightning.Trainer(**(defaults | quiet | arguments))
