"""Loads the user's program in a process of its own: dataset, collate_fn and the rest, out of a program segment."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import mmap
import os
import pickle
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from prefetchd.wire.program_layout import decode_program

MOST_COPIED_BYTES = 16 << 20
"""The most that a dataset may take to be copied: of a larger one another fork has it, and shares its memory."""


class ProgramSpentError(Exception):
    """The program as it was handed over can only be had in another fork."""


@dataclasses.dataclass
class Program:
    """Everything that makes a stream's batches. `collate_fn` None stands for torch's default of the batch size;
    `collate_additions` is what the trainer has added to that one's table of types.

    Where a sampler decides the order: `index_sampler` gives an epoch's batches of keys (or its keys one by one, for
    samples that come as they are), `generator` is the loader's own, and `generators` are all that the trainer shares
    with them, in its order. `seeds_once`: DataLoader would draw its base seed in the first epoch alone, as its workers
    persist. Where an iterable dataset decides it: `reuses_dataset` says that DataLoader would iterate over one object
    in all epochs, as persistent workers and the trainer itself do.

    `has_worker_info` is False where get_worker_info() returns None, as in the trainer.

    `segment_fd` is its own, and where it was loaded from; -1 for one whose objects are the trainer's, or that nobody
    wants anew. `once`: this process is a fork, whose objects are nobody else's; they may be used once, without a
    copy."""

    dataset: Any
    collate_fn: Callable[[Any], Any] | None = None
    worker_init_fn: Callable[[int], None] | None = None
    collate_additions: dict[Any, Any] | None = None
    index_sampler: Any = None
    generator: Any = None
    generators: Sequence[Any] = ()
    seeds_once: bool = False
    reuses_dataset: bool = False
    has_worker_info: bool = True
    segment_fd: int = -1
    once: bool = False
    is_spent: bool = False

    def anew(self) -> Program:
        """Returns the program as it was handed over, whatever its objects have become since. Takes as long as loading
        it. Raises ProgramSpentError when it was used `once`."""
        if self.segment_fd >= 0:
            return _unpickle(self.segment_fd)
        if self._is_copied:
            with contextlib.suppress(Exception):
                dataset, worker_init_fn = copy.deepcopy((self.dataset, self.worker_init_fn))
                return dataclasses.replace(self, dataset=dataset, worker_init_fn=worker_init_fn)
            self._is_copied = False
        if self.is_spent:
            raise ProgramSpentError
        self.is_spent = self.once
        return self

    @functools.cached_property
    def _is_copied(self) -> bool:
        """False when its objects are used themselves: they cannot be copied, or in a fork that takes much memory."""
        # Here: the daemon imports this module, and no torch.
        from prefetchd.workers.held_objects import copy_bytes

        parts = {"dataset": self.dataset, "worker_init_fn": self.worker_init_fn}
        return not self.once or copy_bytes(parts, MOST_COPIED_BYTES) < MOST_COPIED_BYTES


def load_program(fd: int, *, again: bool = False) -> Program:
    """Unpickles the program behind `fd`; imports the user's modules and extends default_collate as the trainer has.
    Raises whatever that raises. What modules warn of as they are imported the trainer has shown already. With `again`
    it can be had anew.

    Buffers are mapped privately: all processes that fork from this one share them until they write. The mapping
    lives as long as what was built on it.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = _unpickle(fd)
    if again:
        program.segment_fd = os.dup(fd)
        weakref.finalize(program, os.close, program.segment_fd)
    if program.collate_additions:
        # Here: the daemon imports this module, and no torch.
        from torch.utils.data._utils.collate import default_collate_fn_map

        default_collate_fn_map.update(program.collate_additions)
    return program


def _unpickle(fd: int) -> Program:
    mapping = mmap.mmap(fd, os.fstat(fd).st_size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    view = memoryview(mapping)
    layout = decode_program(view)
    pickled = view[layout.pickle_offset : layout.pickle_offset + layout.pickle_bytes]
    buffers = [view[at : at + size] for at, size in zip(layout.buffer_offsets, layout.buffer_sizes)]
    return Program(**pickle.loads(pickled, buffers=buffers))
