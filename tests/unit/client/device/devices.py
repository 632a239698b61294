"""The devices that tests of the device path run on: fake ones in several orders, and a real one where there is one."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable
from typing import Any

import torch
from prefetchd_client.device.cuda import CudaBackend

from tests.unit.client.device.fake_device import FakeDevice

DEVICES = ("late", "random 1", "random 2", "random 3", *(["cuda"] if torch.cuda.is_available() else []))
CYCLES = 200_000_000
"""About a tenth of a second of a GPU."""


class Bench:
    """A device, and what tests do with it beside what the path does."""

    def __init__(self, name: str) -> None:
        self.is_fake = name != "cuda"
        seed = name.partition(" ")[2]
        self.fake = FakeDevice(random.Random(int(seed)) if seed else None)
        self.backend: Any = self.fake if self.is_fake else CudaBackend(None)
        self.name = "cuda"
        """What a loader is told as device=; its backend is put in the place of the real one."""

    def delay(self, stream: Any = None) -> None:
        """Work that takes a while, in line on the stream."""
        if self.is_fake:
            self.fake.delay(stream or self.fake.current_stream())
        else:
            with self.backend.on(stream or self.backend.current_stream()):
                torch.cuda._sleep(CYCLES)

    def read(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A kernel on the current stream reads `tensor` of the device; call what is returned for what it has read."""
        if self.is_fake:
            return self.fake.read(tensor)
        found = tensor.clone()
        done = self.backend.record(self.backend.current_stream())

        def read() -> torch.Tensor:
            done.synchronize()  # whichever stream is current by then
            return found.cpu()

        return read

    def to_device(self, tensor: torch.Tensor) -> torch.Tensor:
        """As tensor.to(device, non_blocking=True)."""
        target = self.backend.empty_like(tensor)
        self.backend.copy(target, tensor)
        return target

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self.fake.is_pinned(tensor) if self.is_fake else tensor.is_pinned()

    def adding(self, draw: Callable[[], torch.Tensor]) -> Callable[[Any], Any]:
        """A transform: to the first tensor of each batch, what draw() returns is added."""
        if not self.is_fake:
            return lambda batch: [batch[0] + draw().to(batch[0].device), *batch[1:]]

        def transform(batch: Any) -> Any:
            source, drawn = batch[0], draw()
            target = self.fake.empty_like(source)
            # By address, as kernels do: the allocator does not know of them.
            read, write = (torch.frombuffer(_at(each), dtype=each.dtype).view(each.shape) for each in (source, target))
            self.fake.kernel(lambda: write.copy_(read + drawn))
            return [target, *batch[1:]]

        return transform


def _at(tensor: torch.Tensor) -> Any:
    return (ctypes.c_ubyte * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
