"""is_of_forked_cuda recognises the errors of samples that use CUDA in a fork of a process that uses it too.

CUDA cannot be used in such a fork at all (PyTorch's notes on multiprocessing, "Poison fork in multiprocessing"). A
loader with num_workers=0 has promised nothing of processes, so its samples may lie on a device, or go there when they
are collated; what then fails in a worker works in the trainer (docs/decisions/0119).
"""

from __future__ import annotations

import contextlib
import weakref
from typing import Any

PHRASES = ("Cannot re-initialize CUDA in forked subprocess", "CUDA error: initialization error")
"""torch's own check, and what CUDA says of a tensor that was there before the fork. Neither has a class of its own."""

WARNING = (
    "samples of the stream {name!r} use CUDA, which no fork of this process can. As num_workers is 0, its batches are "
    "made in this process from now on, as by DataLoader: none ahead of time. To have them made ahead, keep dataset and "
    "collate_fn on the CPU and pass device='cuda'"
)

# By the dataset's id: the dataset and the collate function whose samples are known to use CUDA.
_known: dict[int, tuple[weakref.ref[Any], weakref.ref[Any]]] = {}


def is_of_forked_cuda(error: BaseException) -> bool:
    """Returns True when the error is that of CUDA in a fork."""
    return isinstance(error, RuntimeError) and any(phrase in str(error) for phrase in PHRASES)


def remember(dataset: Any, collate_fn: Any) -> None:
    """Has uses_cuda() return True for the two as long as both live. Does nothing for what cannot be referred to
    weakly."""
    key = id(dataset)
    with contextlib.suppress(TypeError):
        _known[key] = (weakref.ref(dataset, lambda _: _known.pop(key, None)), weakref.ref(collate_fn))


def uses_cuda(dataset: Any, collate_fn: Any) -> bool:
    """Returns True when the samples of the two have been seen to use CUDA."""
    known = _known.get(id(dataset))
    return known is not None and known[0]() is dataset and known[1]() is collate_fn
