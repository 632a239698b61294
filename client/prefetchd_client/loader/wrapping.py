"""arguments_of returns the arguments that a DataLoader was made with, as far as it still knows."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler


def arguments_of(dataloader: DataLoader[Any]) -> dict[str, Any]:
    """Returns keyword arguments, the dataset left out, that make another loader of the same batches. A sampler as
    DataLoader makes it itself is no argument; any other is."""
    arguments: dict[str, Any] = {
        "num_workers": dataloader.num_workers,
        "collate_fn": dataloader.collate_fn,
        "pin_memory": dataloader.pin_memory,
        "timeout": dataloader.timeout,
        "worker_init_fn": dataloader.worker_init_fn,
        "multiprocessing_context": dataloader.multiprocessing_context,
        "generator": dataloader.generator,
        "prefetch_factor": dataloader.prefetch_factor,
        "persistent_workers": dataloader.persistent_workers,
        "pin_memory_device": dataloader.pin_memory_device,
        "in_order": dataloader.in_order,
    }
    # DataLoader keeps no batch_size where it was given a batch_sampler.
    if dataloader.batch_sampler is not None and dataloader.batch_size is None:
        return arguments | {"batch_sampler": dataloader.batch_sampler}
    arguments |= {"batch_size": dataloader.batch_size, "drop_last": dataloader.drop_last}
    if isinstance(dataloader.dataset, IterableDataset) or _is_made_in_order(dataloader):
        return arguments
    if _is_made_by_shuffle(dataloader):
        return arguments | {"shuffle": True}
    return arguments | {"sampler": dataloader.sampler}


def _is_made_in_order(dataloader: DataLoader[Any]) -> bool:
    """Returns True when the sampler is what DataLoader makes without shuffle."""
    sampler, dataset = _order_of(dataloader)
    return type(sampler) is SequentialSampler and sampler.data_source is dataset


def _is_made_by_shuffle(dataloader: DataLoader[Any]) -> bool:
    """Returns True when the sampler is what DataLoader makes of shuffle=True."""
    sampler, dataset = _order_of(dataloader)
    return (
        type(sampler) is RandomSampler
        and sampler.data_source is dataset
        and not sampler.replacement
        and sampler._num_samples is None
        and sampler.generator is dataloader.generator
    )


def _order_of(dataloader: DataLoader[Any]) -> tuple[Any, Any]:
    return dataloader.sampler, dataloader.dataset
