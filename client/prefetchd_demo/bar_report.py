"""bar_groups and notes tell what was measured with a step that leaves the CPUs alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from prefetchd_demo.bars import BarGroup
from prefetchd_demo.comparison import Measured
from prefetchd_demo.conditions import Conditions
from prefetchd_demo.trainer_messages import CACHED, DATALOADER, PREFETCHD

STYLES = {DATALOADER: "yellow", PREFETCHD: "green", CACHED: "cyan"}


def bar_groups(measured: Mapping[str, Measured]) -> list[BarGroup]:
    """Returns the bars, those of each loader in each group."""
    return [
        BarGroup(
            "Stalled: all waits for batches, in training and validation, but for first batches",
            {name: each.first.stalled_s + each.second.stalled_s for name, each in measured.items()},
        ),
        BarGroup(
            "First batch, from the loader's construction on",
            {name: each.first.last.first_batch_s for name, each in measured.items()},
        ),
        BarGroup(
            "First batch after the kill, from the loader's construction on",
            {name: each.second.last.first_batch_s for name, each in measured.items()},
        ),
        BarGroup(
            "First batch after the kill, from the start of the new process on, imports included",
            {name: each.second.from_start_s for name, each in measured.items()},
        ),
    ]


def notes(measured: Mapping[str, Measured], conditions: Conditions) -> list[str]:
    """Says what losses there were, and what the figures hold for."""
    return [
        _losses(measured),
        f"{conditions.amounts()}. Every tenth image is for validation. Killed some steps after a checkpoint.",
        "DataLoader has persistent_workers, prefetch_factor=4, and a sampler that goes on from the checkpoint's step.",
        "prefetchd has lookback=, for the steps since the checkpoint, and for validation deterministic=True.",
        "The sample cache fills in the first epoch.",
        *conditions.found(),
        f"Machine: {conditions.machine}.",
    ]


def _losses(measured: Mapping[str, Measured]) -> str:
    losses = {}
    for name, each in measured.items():
        validated = each.second.validated
        assert validated is not None
        losses[name] = f"training {validated.training_loss!r}, validation {validated.loss!r}"
    if len(set(losses.values())) == 1:
        return f"Loss of the last epoch, the same with all to the last digit: {next(iter(losses.values()))}."
    return "Losses of the last epoch differ: " + "; ".join(f"{name}: {text}" for name, text in losses.items()) + "."
