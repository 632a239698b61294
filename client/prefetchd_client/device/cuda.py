"""CudaBackend drives CUDA through torch.cuda alone."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from prefetchd_client.device.backend import Event, Stream
from prefetchd_client.device.cudart import CheckedCudart, last_error_clearer

# Parts of it have no types.
cuda: Any = torch.cuda


class CudaBackend:
    """Implements DeviceBackend for CUDA. CUDA is initialised by the first call that needs it, not before."""

    def __init__(self, index: int | None) -> None:
        """Uses the device with that number; None takes the one that is current at the first call."""
        self._index = index
        self._current: tuple[int | None, Any] = (None, None)

    @functools.cached_property
    def device(self) -> torch.device:
        return torch.device("cuda", cuda.current_device() if self._index is None else self._index)

    @functools.cached_property
    def _cudart(self) -> CheckedCudart:
        return CheckedCudart(cuda.cudart(), last_error_clearer() or self._clear_by_a_kernel)

    @functools.cached_property
    def _passed(self) -> Any:
        return cuda.Event()

    def register(self, address: int, size: int) -> str:
        with cuda.device(self.device):
            return self._cudart.register(address, size)

    def unregister(self, address: int) -> str:
        with cuda.device(self.device):
            return self._cudart.unregister(address)

    def pinned(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory()

    def current_stream(self) -> Stream:
        # The same object as long as it is the same stream: torch takes microseconds to make one.
        index = self.device.index
        raw = _raw_stream(index)
        if raw is None or raw != self._current[0]:
            self._current = raw, cuda.current_stream(index)
        return self._current[1]

    def current_streams(self) -> list[Stream]:
        return [cuda.current_stream(index) for index in _devices_in_use()]

    def new_stream(self) -> Stream:
        return cuda.Stream(self.device)

    def on(self, stream: Stream) -> contextlib.AbstractContextManager[Any]:
        # Newer streams do it themselves, ten times as fast.
        context: contextlib.AbstractContextManager[Any] = (
            stream if hasattr(stream, "__enter__") else cuda.stream(stream)
        )
        return context

    def record(self, stream: Stream, event: Event | None = None) -> Event:
        return stream.record_event(event)  # type: ignore[no-any-return]

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def follow(self, stream: Stream, other: Stream) -> None:
        # A wait is for what the event stood for when it was put in line: one event will do for all.
        self._passed.record(other)
        stream.wait_event(self._passed)

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device=self.device)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        target.copy_(source, non_blocking=True)

    def lend(self, tensor: torch.Tensor, stream: Stream) -> None:
        tensor.record_stream(stream)

    def generator(self) -> torch.Generator | None:
        generator: torch.Generator = cuda.default_generators[self.device.index]
        return generator

    def is_capturing(self) -> bool:
        with contextlib.suppress(RuntimeError):
            return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())
        return False

    def synchronize(self) -> None:
        for index in _devices_in_use():
            cuda.synchronize(index)

    def _clear_by_a_kernel(self) -> None:
        """Clears the last error where the runtime cannot be asked to: torch's own check after a launch takes the error
        and raises it."""
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self.device)


def _raw_stream(index: int) -> int | None:
    """Returns what CUDA calls the device's current stream, or None where torch does not tell."""
    ask = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return ask(index) if ask is not None else None


def _devices_in_use() -> Iterator[int]:
    """Yields the devices that have a context of this process; to make a context of another would cost it hundreds of
    MB."""
    if not cuda.is_initialized():
        return
    has_context = getattr(torch._C, "_cuda_hasPrimaryContext", lambda index: True)
    for index in range(cuda.device_count()):
        if has_context(index):
            yield index
