"""select_path finds the path that a loader's arguments ask for."""

from __future__ import annotations

from typing import Any

import torch

from prefetchd.wire.errors import CallerError
from prefetchd.wire.stream_spec import MINIMUM_SLOTS, MINIMUM_SLOTS_DEVICE
from prefetchd_client.device.backend import DeviceBackend
from prefetchd_client.device.cuda import CudaBackend
from prefetchd_client.loader.device_iterators import CpuIterator, DeviceIterator, PinnedIterator
from prefetchd_client.loader.device_paths import CpuPath, DevicePath, PinnedPath, UnpinnedPath
from prefetchd_client.loader.iterator import Epochs, PrefetchIterator
from prefetchd_client.loader.positions import Positions
from prefetchd_client.loader.single_thread_guard import SingleThreadGuard

AnyPath = UnpinnedPath | CpuPath | PinnedPath | DevicePath


def select_path(device: Any, transform: Any, *, pin_memory: bool) -> AnyPath | None:
    """Returns the path, or None when batches are handed out as they come out of the ring. Raises CallerError."""
    if device is None:
        if transform is not None:
            raise CallerError("device_transform= without device=; allowed: device='cpu' or a CUDA device with it")
        return _pinning() if pin_memory else None
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise CallerError(f"device={device!r}; allowed: 'cpu', 'cuda', 'cuda:1' and so on ({error})") from None
    if transform is not None and not callable(transform):
        raise CallerError(f"device_transform={transform!r}; allowed: a callable that takes a batch")
    if wanted.type == "cpu":
        return CpuPath(transform) if transform is not None else _pinning() if pin_memory else None
    return DevicePath(backend_for(wanted), transform)


def backend_for(device: torch.device) -> DeviceBackend:
    """Returns the backend of that device. Raises CallerError when torch sees none like it."""
    if device.type != "cuda":
        raise CallerError(f"device={str(device)!r}; allowed: 'cpu', 'cuda', 'cuda:1' and so on")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        raise CallerError(f"device={str(device)!r}; torch {torch.__version__} sees {count} CUDA devices here")
    return CudaBackend(device.index)


def _pinning() -> AnyPath:
    return PinnedPath(backend_for(torch.device("cuda"))) if torch.cuda.is_available() else UnpinnedPath()


def minimum_slots(path: AnyPath | None) -> int:
    """Returns the fewest slots of a ring whose batches take that path."""
    return MINIMUM_SLOTS_DEVICE if isinstance(path, DevicePath) else MINIMUM_SLOTS


def new_iterator(
    loader: Epochs, positions: Positions, guard: SingleThreadGuard, path: AnyPath | None
) -> PrefetchIterator:
    """Makes an iterator for that path; to be called from the loader's __iter__."""
    own = loader, positions, guard
    if isinstance(path, DevicePath):
        return DeviceIterator(*own, path)
    if isinstance(path, PinnedPath):
        return PinnedIterator(*own, path)
    if isinstance(path, CpuPath):
        return CpuIterator(*own, path)
    if path is not None:
        path.warn()
    return PrefetchIterator(*own)
