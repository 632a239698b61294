"""The arguments a DataLoader was made with, as far as it still knows."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler


def arguments_of(dataloader: DataLoader[Any]) -> dict[str, Any]:
    """Keyword arguments, the dataset left out, that make another loader of the same batches. A shuffle that draws each
    index once is `shuffle`, whoever made its sampler."""
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
    if dataloader.batch_sampler is not None and dataloader.batch_size is None:
        return arguments | {"batch_sampler": dataloader.batch_sampler}
    arguments |= {"batch_size": dataloader.batch_size, "drop_last": dataloader.drop_last}
    sampler = dataloader.sampler
    if type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        arguments["shuffle"] = True
    elif type(sampler) is not SequentialSampler and not isinstance(dataloader.dataset, IterableDataset):
        arguments["sampler"] = sampler
    return arguments
