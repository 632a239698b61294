"""Staging has a few pinned buffers for batches whose slot is not registered: they are copied there first, and the slot
is free."""

from __future__ import annotations

import torch

from prefetchd_client.device.backend import DeviceBackend

ALIGNMENT = 256
"""Tensors of one buffer begin at multiples of this."""


class Staging:
    """Lends buffers of pinned memory in turn; at most as many as batches are copied at once. One thread at a time."""

    def __init__(self, backend: DeviceBackend) -> None:
        self.is_possible = True
        """Whether buffers are to be had; False once there was no pinned memory."""
        self._backend = backend
        self._free: list[torch.Tensor] = []

    def take(self, size: int) -> torch.Tensor | None:
        """Returns a buffer of at least `size` bytes, the caller's until it is given back; None when there is no pinned
        memory."""
        if not self.is_possible:
            return None
        for place, buffer in enumerate(self._free):
            if buffer.numel() >= size:
                return self._free.pop(place)
        if self._free:
            self._free.pop()
        try:
            return self._backend.pinned(size)
        except RuntimeError:
            self.is_possible = False
            return None

    def give_back(self, buffer: torch.Tensor) -> None:
        """Takes a buffer back, which no device reads any more."""
        self._free.append(buffer)


def aligned(size: int) -> int:
    """Returns the bytes that a tensor of `size` bytes takes in a buffer."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def staged(source: torch.Tensor, target: torch.Tensor, buffer: torch.Tensor, offset: int) -> torch.Tensor:
    """Copies `source` into the buffer, laid out as `target` is, and returns that copy."""
    flat = buffer[offset : offset + target.numel() * target.element_size()].view(target.dtype)
    found = flat.as_strided(target.shape, target.stride())
    found.copy_(source)
    return found
