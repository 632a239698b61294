"""Reads where a dataset stands, and lets it go on from there. Runs in a worker.

1. A state_dict() without arguments is that of torchdata's Stateful. The dataset and its iterator are both asked.
2. litdata's state_dict(num_samples_yielded, num_workers, batch_size) counts the samples of all workers, and refuses to
   be called in one of them. Called with as many whole rounds of the workers' turns as this shard has given batches, it
   describes this shard exactly.
3. MosaicML's state_dict(num_samples, from_beginning) describes all workers at once, and load_state_dict() writes to
   memory that they share. So each shard gives the state in which its iterator began, which is the same for all, and
   goes forward from there. It is read once, right after the iterator's first sample: later the library's own counter
   of epochs may be past this one. That counter is put back before shards begin again. In a trainer that goes on with
   a later epoch nothing has counted yet: there the counter is set to that epoch.
4. A state_dict() that needs other arguments, or raises, gives no state: shards then go forward from the epoch's first
   sample.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.utils.data._utils.worker as torch_worker

LITDATA_ARGUMENTS = ("num_samples_yielded", "num_workers", "batch_size")
MOSAICML_ARGUMENTS = ("num_samples", "from_beginning")


class DatasetStates:
    """The states of one shard's dataset and iterator; `rows` samples are taken for each batch."""

    def __init__(self, dataset: Any, rows: int, shards: int, warn: Callable[[str], None]) -> None:
        """`warn` is called with the reason when a state cannot be read."""
        self._dataset = dataset
        self._rows = rows
        self._shards = shards
        self._warn = warn
        self._arguments = _needed_arguments(dataset)

    @property
    def is_of_epoch(self) -> bool:
        """True when read() is to be called once, with the number of the batch at which the iterator began (rule 3)."""
        return self._arguments == MOSAICML_ARGUMENTS

    def read(self, iterator: Any, number: int) -> tuple[Any, Any] | None:
        """Returns the states of the dataset and of its iterator before batch `number` of the shard; None without
        any. Warns where rule 4 applies."""
        try:
            if self._arguments == LITDATA_ARGUMENTS:
                found = self._of_litdata(number), None
            elif self._arguments == MOSAICML_ARGUMENTS:
                found = self._dataset.state_dict(0, False), None
            else:
                found = _stateful(self._dataset), _stateful(iterator)
        except Exception as error:
            self._warn(f"state_dict() of the dataset raised {type(error).__name__}: {error}")
            return None
        return None if found[0] is None and found[1] is None else found

    def begin(self, epoch: int) -> None:
        """Prepares the dataset to begin `epoch` without a state, before iter()."""
        if self._arguments == MOSAICML_ARGUMENTS and self._dataset.next_epoch == 0:
            self._dataset.next_epoch = epoch

    def load(self, state: Any) -> None:
        """Lets the dataset go on from what read() gave for it, before iter(). Raises what load_state_dict() raises."""
        if self._arguments == MOSAICML_ARGUMENTS:
            # A state of an epoch before the counter's is passed over as stale.
            self._dataset.next_epoch = state["epoch"]
        self._dataset.load_state_dict(state)

    def _of_litdata(self, number: int) -> Any:
        samples, batch_size = number * self._rows, self._dataset.batch_size
        # It counts in its own batch size, which DataLoader is not given where the trainer does not use its loader.
        if samples % batch_size:
            return None
        with _outside_a_worker():
            return self._dataset.state_dict(samples * self._shards, self._shards, batch_size)


def _stateful(value: Any) -> Any:
    """Returns the value's state as torchdata's Stateful gives it; None when it has none."""
    return value.state_dict() if _needed_arguments(value) == () else None


def _needed_arguments(value: Any) -> tuple[str, ...] | None:
    """Returns the names of the arguments that state_dict() needs; None without state_dict() and load_state_dict()."""
    if not all(callable(getattr(value, name, None)) for name in ("state_dict", "load_state_dict")):
        return None
    try:
        parameters = inspect.signature(value.state_dict).parameters.values()
    except (TypeError, ValueError):
        # Methods of C code may have no signature.
        return ()
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return tuple(each.name for each in parameters if each.default is each.empty and each.kind not in optional)


@contextmanager
def _outside_a_worker() -> Iterator[None]:
    info, torch_worker._worker_info = torch_worker._worker_info, None
    try:
        yield
    finally:
        torch_worker._worker_info = info
