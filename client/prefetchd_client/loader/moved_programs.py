"""Decide when a loader's batches have to be made by another process than its fork, and remember which programs need it.

DataLoader with num_workers=0 makes samples in the trainer. It has promised nothing of processes, so what a fork breaks
must work there (decisions 0119 and 0132):

1. Samples that use CUDA fail in a fork (PyTorch's notes on multiprocessing, "Poison fork in multiprocessing").
2. A library whose threads the fork lacks waits for them for ever.
3. Samples that write into the dataset, or depend on what those before them have written, belong into one process.
4. A loop that changes the dataset within an epoch expects the next batch to show it.

Batches are then made in the trainer; in case 2 by an interpreter of its own, if the program can be pickled. With
num_workers=1 or more samples of case 3 are dealt to the workers as DataLoader deals them.
"""

from __future__ import annotations

import contextlib
import enum
import weakref
from typing import Any

PHRASES = ("Cannot re-initialize CUDA in forked subprocess", "CUDA error: initialization error")
"""torch's own check, and what CUDA says of a tensor that was there before the fork. Neither has a class of its own."""


class Where(enum.Enum):
    """Say which process makes a loader's batches when it is not its fork."""

    TRAINER = "trainer"
    INTERPRETER = "interpreter"
    DEALT = "dealt"


CUDA_WARNING = (
    "samples of the stream {name!r} use CUDA, which no fork of this process can. As num_workers is 0, its batches are "
    "made in this process from now on, as by DataLoader: none ahead of time. To have them made ahead, keep dataset and "
    "collate_fn on the CPU and pass device='cuda'"
)
WROTE_WARNING = (
    "samples of the stream {name!r} change {what}. As num_workers is 0, its batches are made in this process from now "
    "on, as by DataLoader: none ahead of time. num_workers=1 makes them ahead, in a worker that has its own copy"
)
LOOP_WARNING = (
    "{what} was changed within an epoch of the stream {name!r}. As num_workers is 0, its batches are made in this "
    "process from now on, as by DataLoader: none ahead of time. num_workers=1 makes them ahead, and shows changes when "
    "the next epoch begins"
)
DEALT_WARNING = (
    "a sample of the stream {name!r} is another one when it is made again, since samples change {what}. Each batch is "
    "made as a whole by one worker from now on, and workers take turns, as in DataLoader: a run repeats itself with "
    "the same num_workers"
)
STUCK_WARNING = (
    "the first sample of the stream {name!r} makes no progress in a fork of this process: it seems to wait for threads "
    "that a fork does not have ({what}). As num_workers is 0, its batches are made {where} from now on"
)
IN_TRAINER = "in this process, as by DataLoader: none ahead of time"
IN_INTERPRETER = (
    "by workers that begin with an interpreter of their own, which takes some seconds once. PREFETCHD_START=exec "
    "begins with that"
)

# By the dataset's id: the dataset, the collate function, and where their batches are made.
_known: dict[int, tuple[weakref.ref[Any], weakref.ref[Any], Where]] = {}


def is_of_forked_cuda(error: BaseException) -> bool:
    """Returns True when the error is that of CUDA in a fork."""
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in PHRASES)


def remember(dataset: Any, collate_fn: Any, where: Where) -> None:
    """Has known_place() return `where` for the two as long as both live. Does nothing for what cannot be referred to
    weakly."""
    key = id(dataset)
    with contextlib.suppress(TypeError):
        _known[key] = (weakref.ref(dataset, lambda _: _known.pop(key, None)), weakref.ref(collate_fn), where)


def known_place(dataset: Any, collate_fn: Any) -> Where | None:
    """Return where batches of the two have turned out to be made; None when a fork makes them."""
    known = _known.get(id(dataset))
    return known[2] if known is not None and known[0]() is dataset and known[1]() is collate_fn else None
