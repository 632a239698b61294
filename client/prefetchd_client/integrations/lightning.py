"""This module puts PrefetchLoader into Lightning: a callback that every Trainer finds by itself, through the package's
entry points.

Lightning saves and loads a loader's state_dict() on its own. What it does not know is what a position at the end of an
epoch means, and which share of an epoch a loader has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import SequentialSampler

from prefetchd.wire.errors import CallerError
from prefetchd_client.loader.loader import PrefetchLoader


class _Watch:
    """Holds a Trainer and its PrefetchLoaders together; does nothing where there are none."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        _check_shares(trainer, trainer.train_dataloader)
        for loader in _ours(trainer.train_dataloader):
            state = loader.state_dict()
            # From a checkpoint of an epoch's last batch, whose end has no other hook. To us the next pass is what is
            # left of that epoch, to a Trainer it is the next epoch.
            if 0 < min(_steps(loader), trainer.num_training_batches) <= state["step"]:
                loader.set_epoch(state["epoch"] + 1)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        for loader in _ours(trainer.train_dataloader):
            state, following = loader.state_dict(), loader.next_epoch
            if following == 0 == state["step"]:
                # Made for this epoch, or its state was not loaded: that of an epoch's end is not always.
                following = trainer.current_epoch
            elif following == state["epoch"] and state["step"] > 0:
                # From a checkpoint of the end of an epoch that was cut short.
                following += 1
            if following != loader.next_epoch:
                loader.set_epoch(following)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        every, step = trainer.log_every_n_steps, trainer.global_step
        if not trainer.loggers or not every or step % every:
            return
        for loader in _ours(trainer.train_dataloader):
            # With several loaders the first one: loggers have one value of a name at a step.
            if found := loader.metrics():
                for logger in trainer.loggers:
                    logger.log_metrics(found, step=step)
                return

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        _check_shares(trainer, trainer.val_dataloaders)

    def on_test_start(self, trainer: Any, pl_module: Any) -> None:
        _check_shares(trainer, trainer.test_dataloaders)

    def on_predict_start(self, trainer: Any, pl_module: Any) -> None:
        _check_shares(trainer, trainer.predict_dataloaders)
        writes = any(hasattr(each, "write_on_batch_end") for each in trainer.callbacks)
        for loader in _ours(trainer.predict_dataloaders):
            silent = _tell_indices(loader)
            if silent is not None and writes:
                raise CallerError(
                    f"a BasePredictionWriter asks for batch_indices, and those of a {type(silent).__name__} are drawn "
                    "in another process; allowed: a loader without shuffle= and sampler=, what predict() "
                    "returns, or a DataLoader here"
                )


def callbacks() -> list[Any]:
    """Returns the callbacks for lightning's entry point."""
    from lightning.pytorch.callbacks import Callback

    return [type("PrefetchWatch", (_Watch, Callback), {})()]


def pytorch_lightning_callbacks() -> list[Any]:
    """Returns the callbacks for pytorch_lightning's entry point, the same package under its former name."""
    from pytorch_lightning.callbacks import Callback

    return [type("PrefetchWatch", (_Watch, Callback), {})()]


def _ours(loaders: Any) -> Iterator[PrefetchLoader]:
    """Yields the PrefetchLoaders of a collection as Lightning takes them."""
    if isinstance(loaders, PrefetchLoader):
        yield loaders
    elif isinstance(loaders, dict):
        for each in loaders.values():
            yield from _ours(each)
    elif isinstance(loaders, (list, tuple)):
        for each in loaders:
            yield from _ours(each)


def _tell_indices(loader: PrefetchLoader) -> Any:
    """Lists the indices of a loader's batches where Lightning reads them: off its wrapper of the batch sampler, which
    is iterated over in another process. Returns the sampler when they are not the same each time, and cannot be listed
    here."""
    wrapper: Any = loader.batch_sampler
    inner = getattr(wrapper, "_batch_sampler", None)
    if inner is None:
        # As with a DataLoader: it warns that it cannot tell.
        return None
    sampler = getattr(inner, "sampler", None)
    if not isinstance(sampler, SequentialSampler) and getattr(sampler, "shuffle", True):
        return sampler
    wrapper.seen_batch_indices = [list(batch) for batch in inner]
    return None


def _steps(loader: PrefetchLoader) -> float:
    try:
        return len(loader)
    except TypeError:
        return float("inf")


def _check_shares(trainer: Any, loaders: Any) -> None:
    """Raises CallerError for a share of the epoch that was asked for and is not this process's."""
    mine = trainer.global_rank, trainer.world_size
    for loader in _ours(loaders):
        spec = loader.spec
        if loader.rank is not None and spec.order != "sampler" and (spec.rank, spec.world_size) != mine:
            raise CallerError(
                f"the loader's share is rank {spec.rank} of {spec.world_size}, this process is {mine[0]} of {mine[1]}; "
                'allowed: no rank= and world_size=, those of this process, or rank="auto" of a loader that is made in '
                "train_dataloader()"
            )
