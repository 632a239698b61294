"""What the device path asks of a device, and nothing else: CUDA answers it (cuda), and a fake device in tests.

Work on a device is put in line on a stream and done some time later, in the stream's order. Memory of the device is
given back to the stream that was current when it was made: that stream's next memory may be the same, at once.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

Stream = Any
"""A stream of the backend's own; two names of one stream are equal."""


class Event(Protocol):
    """A place in a stream."""

    def query(self) -> bool:
        """True once all work before it is done. Does not block."""

    def synchronize(self) -> None:
        """Blocks until then."""


class DeviceBackend(Protocol):
    """One device. Nothing here blocks unless it says so; all of it raises what the device raises, such as an error of
    work that was put in line before. None of it is for a forked child."""

    @property
    def device(self) -> torch.device:
        """The device, with its number. Asked for at the first next(), not before."""

    def register(self, address: int, size: int) -> str:
        """Makes `size` bytes at `address` pinned memory for all devices of the kind. Empty, or why it cannot be: then
        nothing has changed, and no later work is blamed for it."""

    def unregister(self, address: int) -> str:
        """Undoes register(), before the memory is unmapped. Empty, or what went wrong."""

    def pinned(self, size: int) -> torch.Tensor:
        """So many bytes of other pinned memory. Raises RuntimeError."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` itself if it is pinned, else a pinned copy that the device's library looks after, as
        torch.Tensor.pin_memory() makes it. Raises RuntimeError."""

    def current_stream(self) -> Stream:
        """Of the device, in this thread."""

    def current_streams(self) -> list[Stream]:
        """Of every device that this process uses."""

    def new_stream(self) -> Stream:
        """Another one of the device."""

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Makes `stream` and its device current."""

    def record(self, stream: Stream) -> Event:
        """The place after all that is in line on `stream` now."""

    def wait(self, stream: Stream, event: Event) -> None:
        """What is put in line on `stream` from now on is done after `event`."""

    def follow(self, stream: Stream, other: Stream) -> None:
        """What is put in line on `stream` from now on is done after all that is in line on `other` now."""

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """On the device: same dtype, shape and order of dimensions, of the current stream's memory."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Puts a copy in line on the current stream. `source` is read some time later, if it is pinned: whoever calls
        must keep it as it is until an event after the copy."""

    def lend(self, tensor: torch.Tensor, stream: Stream) -> None:
        """`stream` uses this tensor of the device too: when it is freed, its memory is used again only after what is in
        line there then."""

    def generator(self) -> torch.Generator | None:
        """The device's default generator, if it has one apart from the CPU's."""

    def is_capturing(self) -> bool:
        """True while the current stream records a graph: then no event may be asked, and no memory registered. Raises
        nothing: a device that has failed captures none."""

    def synchronize(self) -> None:
        """Blocks until all devices that this process uses have done all that was put in line."""
