"""report_on words what is said of each of a script's loaders."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler

from prefetchd_client.script_check.forked_run import Run
from prefetchd_client.script_check.loader_check import LoaderCheck

OTHER_ORDER = "shuffled in another order: of a seed of its own, which is the same in each run"
OTHER_DRAWS = (
    "what is random is drawn from seeds of each sample's own: the same in each run, with any number of workers"
)
RANDOM = "so do two runs of DataLoader with the same random states"
WHY = "docs: coming-from-dataloader.md, what differs on purpose"
NOT_PINNED = "both were run without pin_memory: the script had begun to use CUDA, which a fork cannot go on with"
IN_FORKS_ONLY = "the script itself goes on: its samples can be made in no other process, as workers are"
FEWEST_TIMED = 8
"""The fewest batches after the first, of either loader and of the script's own loop, that tell anything: what fewer of
them took is chance."""


@dataclasses.dataclass(frozen=True)
class LoaderReport:
    """Holds what is said of a loader: `title` names it, `lines` say what was found; `is_unequal` when batches differ
    where DataLoader's own do not, or ours could not be made."""

    title: str
    lines: list[str]
    is_unequal: bool


@dataclasses.dataclass(frozen=True)
class LoaderFacts:
    """Holds what is said of a loader that is not kept: large datasets are to go when the script lets them go."""

    title: str
    is_shuffled: bool
    is_pinned: bool
    in_one_thread: bool


def facts_of(location: str, loader: DataLoader[Any]) -> LoaderFacts:
    """Returns what is to be kept of a loader; `location` is where the script iterates over it."""
    sampler = loader.sampler
    return LoaderFacts(
        f"{location}  {_described(loader)}",
        type(sampler) is RandomSampler and sampler.generator is None and loader.generator is None,
        loader.pin_memory,
        loader.num_workers == 0 and torch.get_num_threads() > 1,
    )


def report_on(facts: LoaderFacts, checked: LoaderCheck, steps_s: Sequence[float], most: int) -> LoaderReport:
    """Returns the report on a loader. `steps_s` are how long the script has worked on each batch, `most` is how many of
    an epoch it has got."""
    if checked.theirs.error and most > checked.theirs.count:
        lines, is_unequal = [f"DataLoader raised {checked.theirs.error} in a fork", IN_FORKS_ONLY], True
    else:
        lines, is_unequal = _sameness(checked, is_shuffled=facts.is_shuffled)
    if checked.after_cuda and facts.is_pinned:
        lines.append(NOT_PINNED)
    lines += [
        _times("DataLoader", checked.theirs) + (", in one thread" if facts.in_one_thread else ""),
        _times("PrefetchLoader", checked.ours),
        *_paces(checked, steps_s),
    ]
    return LoaderReport(facts.title, lines, is_unequal)


def _described(loader: DataLoader[Any]) -> str:
    """Names the arguments that decide most."""
    said = [type(loader.dataset).__name__]
    if loader.batch_size is not None:
        said.append(f"batch_size={loader.batch_size}")
    elif loader.batch_sampler is not None:
        said.append(f"batch_sampler={type(loader.batch_sampler).__name__}")
    if loader.batch_sampler is not None and loader.batch_size is not None:
        said.append(f"sampler={type(loader.sampler).__name__}")
    return ", ".join([*said, f"num_workers={loader.num_workers}"])


def _sameness(checked: LoaderCheck, *, is_shuffled: bool) -> tuple[list[str], bool]:
    theirs, ours = checked.theirs, checked.ours
    for name, run in (("DataLoader", theirs), ("PrefetchLoader", ours)):
        if run.lost:
            lines = [f"not compared: the run with {name}: {run.lost}"]
            return lines + ([_of_ours(ours)] if ours.error else []), True
    if ours.error and not theirs.error:
        return [f"PrefetchLoader raised {ours.error}"], True
    if theirs.error:
        same = theirs.error == ours.error
        return [f"DataLoader raised {theirs.error}", "PrefetchLoader did so, too" if same else _of_ours(ours)], not same
    if checked.unequal is None:
        return [f"same: {ours.count} batches are equal"], False
    text = f"differs: batch {checked.unequal_at}: {checked.unequal.text}"
    if not checked.unequal.is_of_values:
        return [text], True
    # Only values differ from here on: by any of these reasons they may.
    if checked.is_random:
        return [text, RANDOM], False
    if is_shuffled:
        return [text, f"{OTHER_ORDER} ({WHY})"], False
    if checked.is_drawn:
        return [text, f"{OTHER_DRAWS} ({WHY})"], False
    return [text], True


def _of_ours(ours: Run) -> str:
    return f"PrefetchLoader raised {ours.error}" if ours.error else "PrefetchLoader raised nothing"


def _times(name: str, run: Run) -> str:
    if not run.count:
        return f"{name:15} no batch"
    return f"{name:15} first batch {run.first_s:.2f} s, {run.count} batches {run.all_s:.2f} s"


def _paces(checked: LoaderCheck, steps_s: Sequence[float]) -> Iterator[str]:
    """Yields how fast batches came, and how long the script worked on each (`steps_s`). Yields nothing where there are
    too few. It is what was measured, and no more: how long a loop waits depends on what else runs on the machine
    then."""
    theirs, ours, after_first_s = checked.theirs, checked.ours, steps_s[1:]
    if min(theirs.count - 1, ours.count - 1, len(after_first_s)) >= FEWEST_TIMED:
        yield (
            f"after the first, a batch each {1000 * theirs.batch_s:.1f} ms from DataLoader, each "
            f"{1000 * ours.batch_s:.1f} ms from PrefetchLoader; the script takes "
            f"{1000 * statistics.median(after_first_s):.1f} ms for one"
        )
