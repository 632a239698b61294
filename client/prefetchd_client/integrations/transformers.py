"""This module puts what loading costs into the logs of HF Trainer, so that whatever `report_to` names shows it."""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback

from prefetchd_client.loader.loader import PrefetchLoader


class LoadingCallback(TrainerCallback):
    """Add what loading costs to each log of a Trainer, so that every logger in `report_to` shows it.

    The figures are those of PrefetchLoader.metrics(). The Trainer's loader must be a PrefetchLoader that
    prefetchd_client.integrations.accelerate.prepare() prepared.

    Example::

        LoadingCallback.add_to(trainer)
    """

    def __init__(self) -> None:
        self._loader: PrefetchLoader | None = None

    @classmethod
    def add_to(cls, trainer: Trainer) -> LoadingCallback:
        """Add the callback to a Trainer, in front of the callbacks that report.

        Behind them it would be called after they had reported.
        """
        made = cls()
        trainer.callback_handler.callbacks.insert(0, made)
        return made

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        loader = given.get("train_dataloader")
        loader = getattr(loader, "base_dataloader", loader)
        # isinstance() alone does not tell: accelerate's loaders take their loader's class for their own.
        self._loader = loader if hasattr(type(loader), "metrics") else None

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **given: Any) -> None:
        if self._loader is not None and logs is not None:
            logs.update(self._loader.metrics())
