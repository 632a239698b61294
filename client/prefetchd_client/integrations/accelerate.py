"""This module puts PrefetchLoader into HF Accelerate, and into HF Trainer, which is built on it.

accelerator.prepare() makes a new loader of every DataLoader that it is given, and that is a plain one. `prepare` here
makes one of accelerate's own kind, DataLoaderShard, around a PrefetchLoader instead.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard, DataLoaderShard

from prefetchd.wire.errors import CallerError
from prefetchd_client.loader.loader import PrefetchLoader


def prepare(accelerator: Accelerator, loader: PrefetchLoader) -> PreparedLoader:
    """Return PrefetchLoader's batches on the accelerator's device, as accelerator.prepare() does for a DataLoader.

    It reports the epoch's last batch to accelerate, for gradient accumulation and gather_for_metrics().
    accelerator.save_state() saves its position, skip_first_batches() skips without loading anything, and
    accelerator.prepare() leaves it as it is. A loader without rank= gets this process's share of each epoch. Warns when
    gather_for_metrics() could not tell which samples padded the ranks.

    Args:
        accelerator: The Accelerator.
        loader: A PrefetchLoader that was not prepared before.

    Raises:
        CallerError: Accelerate would be promised what `loader` does not do: dispatch_batches, split_batches,
            even_batches=False, or a share of the epoch that is not this process's.

    Example::

        loader = prepare(accelerator, PrefetchLoader(dataset, batch_size=64, shuffle=True))
    """
    _check(accelerator, loader)
    if loader.rank is None and accelerator.num_processes > 1 and not _has_mesh(accelerator):
        loader.share(accelerator.process_index, accelerator.num_processes)
    prepared = PreparedLoader(accelerator, loader)
    accelerator.prepare(prepared)
    return prepared


class PreparedLoader(DataLoaderShard):  # type: ignore[misc]
    """Wraps a PrefetchLoader in a loader of accelerate's own kind; what is not defined here is the PrefetchLoader's.
    `iteration` is the epoch that comes next; set_epoch() and load_state_dict() are the PrefetchLoader's.

    What accelerate looks at when it makes another loader of this one (skip_first_batches) leads back to this one: that
    loader plans empty batches, and their collation takes ours.
    """

    # What a loader in the trainer's own process has: accelerate hands these to the loader that it makes.
    num_workers = 0
    timeout = 0
    prefetch_factor = None
    persistent_workers = False
    worker_init_fn = None
    multiprocessing_context = None
    generator = None

    def __init__(self, accelerator: Accelerator, loader: PrefetchLoader) -> None:
        super().__init__(
            loader.dataset,
            device=accelerator.device if accelerator.device_placement else None,
            rng_types=[kind for kind in accelerator.rng_types if kind != "generator"],
            _drop_last=getattr(loader.batch_sampler, "drop_last", loader.drop_last),
            _non_blocking=accelerator.non_blocking,
        )
        self.base_dataloader = loader
        self.dl_state_dict = loader.state_dict()
        self.batch_sampler = _Steps(self)
        # Read by accelerate: it saves the state of such a loader, and does not prepare it again.
        self.use_stateful_dataloader = True
        self._is_accelerate_prepared = True

    @property
    def iteration(self) -> int:
        return self.base_dataloader.next_epoch

    @iteration.setter
    def iteration(self, epoch: int) -> None:
        """Ignores the number: accelerate counts epochs, and the loader has counted this one already."""

    @property
    def collate_fn(self) -> Any:
        return self.batch_sampler.take

    def set_epoch(self, epoch: int) -> None:
        """Does what PrefetchLoader.set_epoch() does."""
        self.base_dataloader.set_epoch(epoch)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Does what PrefetchLoader.load_state_dict() does."""
        self.base_dataloader.load_state_dict(state_dict)
        self.dl_state_dict = self.base_dataloader.state_dict()


class _Steps:
    """Stands in the place of a batch_sampler: it plans an empty batch for each step of the epoch, in whose place `take`
    puts ours."""

    even_batches = property(lambda self: True, lambda self, value: _refuse_uneven(value))

    def __init__(self, prepared: PreparedLoader) -> None:
        loader = prepared.base_dataloader
        self._prepared = prepared
        self._loader: PrefetchLoader = loader
        self._iterator: Iterator[Any] | None = None
        self._step = 0
        # For what accelerate computes from them: the samples of all processes' batches together.
        self.batch_size = loader.batch_size or getattr(loader.batch_sampler, "batch_size", 1)
        inner = loader.batch_sampler
        self.drop_last = getattr(inner, "drop_last", loader.drop_last)
        self.split_batches = getattr(inner, "split_batches", False)
        self.num_processes = getattr(inner, "num_processes", loader.spec.world_size)

    @property
    def sampler(self) -> Any:
        return getattr(self._loader.batch_sampler, "sampler", None)

    def set_epoch(self, epoch: int) -> None:
        self._prepared.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[Any]]:
        self._iterator = None
        for step in range(len(self)):
            self._step = step
            yield []
        if self._iterator is not None:
            # Past the last batch: the loader is to know that the epoch has ended.
            next(self._iterator, None)
            self._prepared.dl_state_dict = self._loader.state_dict()

    def take(self, samples: list[Any]) -> Any:
        """Returns the batch of the step that was planned last. Raises CallerError when there are samples."""
        if samples:
            raise CallerError(
                "a loader that was made from a PreparedLoader loads samples itself; allowed: to iterate over the "
                "PreparedLoader, or over what skip_first_batches() makes of one without an IterableDataset"
            )
        if self._iterator is None:
            state = self._loader.state_dict()
            # skip_first_batches() drops the plans of the steps that it skips: the first step that is taken says where
            # to begin.
            self._loader.load_state_dict({**state, "epoch": self._prepared.iteration, "step": self._step})
            self._iterator = iter(self._loader)
        # Accelerate asks for a batch before it yields the one before: up to here is what has been yielded by then.
        self._prepared.dl_state_dict = self._loader.state_dict()
        return next(self._iterator)


def _check(accelerator: Accelerator, loader: PrefetchLoader) -> None:
    # isinstance() alone does not tell: DataLoaderShard takes its loader's class for its own.
    if not isinstance(loader, PrefetchLoader) or type(loader) is PreparedLoader:
        raise CallerError(f"{type(loader).__name__}; allowed: a PrefetchLoader that was not prepared before")
    if accelerator.dispatch_batches:
        raise CallerError("dispatch_batches=True; allowed: None or False (each process takes its own share)")
    if accelerator.num_processes == 1:
        return
    if accelerator.split_batches:
        raise CallerError("split_batches=True; allowed: False (give each process's part as batch_size)")
    _refuse_uneven(accelerator.even_batches)
    spec, mine = loader.spec, (accelerator.process_index, accelerator.num_processes)
    if spec.order == "sampler":
        if not _shares_itself(loader):
            raise CallerError(
                f"all of the {mine[1]} processes would take the same batches of {type(loader.batch_sampler).__name__}; "
                "allowed: shuffle=, a DistributedSampler, or accelerate's BatchSamplerShard as batch_sampler"
            )
    elif loader.rank is not None and (spec.rank, spec.world_size) != mine and not _has_mesh(accelerator):
        raise CallerError(
            f"the loader's share is rank {spec.rank} of {spec.world_size}, this process is {mine[0]} of {mine[1]}; "
            "allowed: one without rank= and world_size=, or with those of this process"
        )
    elif (
        spec.is_arithmetic
        and not loader.drop_last
        and _are_repeats_hidden(spec.length, mine[1], loader.batch_size or 1)
    ):
        warnings.warn(
            f"{spec.length} samples are evened out with more than one over {spec.world_size} processes: "
            "gather_for_metrics() cuts off the end of what it has gathered, and not all of them stand there",
            stacklevel=3,
        )


def _has_mesh(accelerator: Accelerator) -> bool:
    """Returns True when accelerate has a device mesh: then several processes may be to take the same batches, and only
    the user knows which."""
    return getattr(accelerator, "torch_device_mesh", None) is not None


def _refuse_uneven(even_batches: bool) -> None:
    if not even_batches:
        raise CallerError("even_batches=False; allowed: True (a PrefetchLoader's ranks are always evened out)")


def _shares_itself(loader: PrefetchLoader) -> bool:
    inner = loader.batch_sampler
    return isinstance(inner, BatchSamplerShard) or any(
        hasattr(each, "num_replicas") for each in (loader.sampler, inner, getattr(inner, "sampler", None))
    )


def _are_repeats_hidden(samples: int, ranks: int, rows: int) -> bool:
    """Returns True when samples that even out the ranks stand elsewhere than at the end of the last gathered batch."""
    repeats, last_rows = -samples % ranks, -(-samples // ranks) % rows or rows
    return repeats > 1 and last_rows > 1
