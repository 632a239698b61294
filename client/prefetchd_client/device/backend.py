"""DeviceBackend is all that the device path asks of a device: CUDA answers it (cuda), and a fake device in tests.

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
    """Marks a place in a stream."""

    def query(self) -> bool:
        """Returns True once all work before the event is done. Does not block."""

    def synchronize(self) -> None:
        """Blocks until all work before the event is done."""


class DeviceBackend(Protocol):
    """Drives one device. Nothing here blocks unless it says so; all of it raises what the device raises, such as an
    error of work that was put in line before. None of it is for a forked child."""

    @property
    def device(self) -> torch.device:
        """The device, with its number. To be asked for at the first next(), not before."""

    def register(self, address: int, size: int) -> str:
        """Makes `size` bytes at `address` pinned memory for all devices of the kind. Returns an empty string, or why it
        cannot be: then nothing has changed, and no later work is blamed for it."""

    def unregister(self, address: int) -> str:
        """Undoes register(), before the memory is unmapped. Returns an empty string, or what went wrong."""

    def pinned(self, size: int) -> torch.Tensor:
        """Returns `size` bytes of other pinned memory. Raises RuntimeError."""

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns `tensor` itself if it is pinned, else a pinned copy that the device's library looks after, as
        torch.Tensor.pin_memory() makes it. Raises RuntimeError."""

    def current_stream(self) -> Stream:
        """Returns the device's current stream in this thread."""

    def current_streams(self) -> list[Stream]:
        """Returns the current stream of every device that this process uses."""

    def new_stream(self) -> Stream:
        """Makes another stream of the device."""

    def on(self, stream: Stream) -> AbstractContextManager[Any]:
        """Makes `stream` and its device current."""

    def record(self, stream: Stream, event: Event | None = None) -> Event:
        """Returns an event after all that is in line on `stream` now: `event` again, if given. What waits for its
        former place in a line goes on waiting for that."""

    def wait(self, stream: Stream, event: Event) -> None:
        """Has work that is put in line on `stream` from now on wait for `event`."""

    def follow(self, stream: Stream, other: Stream) -> None:
        """Has work that is put in line on `stream` from now on wait for all that is in line on `other` now."""

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns an empty tensor on the device: same dtype, shape and order of dimensions, of the current stream's
        memory."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Puts a copy in line on the current stream. `source` is read some time later, if it is pinned: whoever calls
        must keep it as it is until an event after the copy."""

    def lend(self, tensor: torch.Tensor, stream: Stream) -> None:
        """Has `stream` use this tensor of the device too: when it is freed, its memory is used again only after what is
        in line on `stream` then."""

    def generator(self) -> torch.Generator | None:
        """Returns the device's default generator, if it has one apart from the CPU's."""

    def is_capturing(self) -> bool:
        """Returns True while the current stream records a graph: then no event may be asked, and no memory registered.
        Raises nothing: a device that has failed captures none."""

    def synchronize(self) -> None:
        """Blocks until all devices that this process uses have done all that was put in line."""
