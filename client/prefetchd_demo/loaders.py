"""A TrainingLoader is a plan's loader, of either kind, that goes to wherever a checkpoint says."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any, cast

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader, Dataset

from prefetchd_demo.order import SeededOrder
from prefetchd_demo.trainer_messages import DATALOADER, ON_CPU, ON_GPU, Plan

PREFETCH_FACTOR = 4
"""Twice DataLoader's default: what is made ahead shall not be what it is short of."""


def make_loader(plan: Plan, dataset: Dataset[Any], sampler: SeededOrder | None, lookback: int = 0) -> DataLoader[Any]:
    """Makes a loader of the plan's kind, with DataLoader's arguments for all; `buffer`, `lookback` and `deterministic`
    are the daemon's alone. Without a `sampler` the order is shuffled ON_CPU; else it is as it is, and all epochs are
    equal."""
    loader = DataLoader(
        dataset,
        plan.batch_size,
        shuffle=plan.step == ON_CPU,
        sampler=sampler,
        num_workers=plan.workers,
        persistent_workers=plan.workers > 0,
        prefetch_factor=PREFETCH_FACTOR if plan.workers and plan.step != ON_CPU else None,
        pin_memory=plan.step == ON_GPU,
    )
    if plan.loader == DATALOADER:
        return loader
    buffer = int(plan.buffer) if plan.buffer.isdecimal() else plan.buffer or None
    all_equal = sampler is None and plan.step != ON_CPU
    return PrefetchLoader.wrap(loader, buffer=buffer, lookback=lookback, deterministic=all_equal or None)


class TrainingLoader:
    """Gives an epoch's batches from any step on."""

    def __init__(self, plan: Plan, dataset: Dataset[Any], lookback: int) -> None:
        """`lookback` is how far behind its end a killed run may be resumed."""
        self._batch_size = plan.batch_size
        self._sampler = None if plan.step == ON_CPU else SeededOrder(len(cast(Sized, dataset)))
        self._loader = make_loader(plan, dataset, self._sampler, lookback)

    def state(self) -> dict[str, Any] | None:
        """Returns what a checkpoint needs beside the position. DataLoader has no state."""
        return self._loader.state_dict() if isinstance(self._loader, PrefetchLoader) else None

    def resume(self, state: dict[str, Any] | None, step: int) -> None:
        """Has the next epoch() begin at `step`, where `state` was taken."""
        if isinstance(self._loader, PrefetchLoader):
            assert state is not None
            self._loader.load_state_dict(state)
        elif self._sampler is not None:
            self._sampler.skip_once(step * self._batch_size)

    def epoch(self, epoch: int) -> Iterator[Any]:
        """Returns the batches of `epoch`."""
        if isinstance(self._loader, PrefetchLoader):
            self._loader.set_epoch(epoch)
        elif self._sampler is not None:
            self._sampler.set_epoch(epoch)
        return iter(self._loader)
