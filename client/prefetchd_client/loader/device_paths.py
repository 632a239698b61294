"""This module has the paths that a loader's batches take between the ring and its next(), and what stats() says of
them. A loader that has a device or pinned memory has one; others have none, and their next() does nothing of this."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from prefetchd.wire.errors import CallerError
from prefetchd.wire.segment_layout import MEMORY_MODES
from prefetchd_client.batches.attachment import Attachment
from prefetchd_client.caller_warnings import warn_caller
from prefetchd_client.device.backend import DeviceBackend, Stream
from prefetchd_client.device.copies import Copies, Copy
from prefetchd_client.device.pins import PAGEABLE, STAGED, RingPins, catch_up
from prefetchd_client.device.structures import tensors_in, with_tensors
from prefetchd_client.seeding import seeded

Transform = Callable[[Any], Any]


class LoaderPath:
    """Is the interface of all paths, and the path of batches that stay in ordinary memory. One thread at a time."""

    def stats(self) -> dict[str, Any]:
        """Returns what stats() of the loader says beside its counts."""
        return {"memory": MEMORY_MODES[0]}

    def record_stream(self, batch: Any, stream: Stream) -> None:
        """Notes that `stream` uses `batch`, a batch or a tensor of one, too. Nothing reads ordinary memory behind the
        trainer's back: this does nothing."""

    def close(self) -> None:
        """Ends what is under way, before the session ends. Idempotent; raises nothing."""


class UnpinnedPath(LoaderPath):
    """Serves pin_memory=True where there is no accelerator: DataLoader's warning, and batches as without it."""

    def warn(self) -> None:
        """Warns as DataLoader's iter() does; to be called on behalf of the loader's."""
        missing = "no CUDA device" if torch.accelerator.is_available() else "no accelerator"
        warn_caller(
            f"'pin_memory' argument is set as true but {missing} is found, then device pinned memory won't be used."
        )


class CpuPath(LoaderPath):
    """Serves device="cpu": a transform in the trainer, and no copies."""

    def __init__(self, transform: Transform) -> None:
        self._transform = transform

    def transformed(self, batch: Any, seed: int) -> Any:
        """Returns the batch after the transform. Raises what the transform raises."""
        with torch.no_grad(), seeded(seed, None):
            return self._transform(batch)


class _RingPath(LoaderPath):
    """Has what the two paths share that know of the ring: its pins, and the mode."""

    fenced: bool

    def __init__(self, backend: DeviceBackend) -> None:
        self.backend = backend
        self._pins: weakref.WeakSet[RingPins] = weakref.WeakSet()
        self._mode = ""
        self._last: RingPins | None = None

    def pins_of(self, attachment: Attachment | None) -> RingPins | None:
        """Returns the ring's pins, which are made when its first batch comes; None where there is no ring."""
        if attachment is None:
            return None
        if attachment.pins is None:
            attachment.pins = RingPins(self.backend, attachment.ring, attachment.note_memory, fenced=self.fenced)
            self._pins.add(attachment.pins)
            self._last = attachment.pins
        return attachment.pins

    def stats(self) -> dict[str, Any]:
        if self._last is None:
            return {"memory": self._mode or MEMORY_MODES[0], "registered_slots": 0, "memory_error": ""}
        return {
            "memory": self._last.mode,
            "registered_slots": self._last.registered_slots,
            "memory_error": self._last.error,
        }


class PinnedPath(_RingPath):
    """Serves pin_memory=True: batches in registered slots as they are, others as pinned copies."""

    fenced = True

    def begin(self, attachment: Attachment | None) -> None:
        """Begins a next(). Blocks when the trainer is too far ahead of its device."""
        if not self.backend.is_capturing():
            _begin(attachment)

    def pinned(self, batch: Any, attachment: Attachment | None) -> Any:
        """Returns the batch in pinned memory, as far as there is any."""
        pins = self.pins_of(attachment)
        if self.backend.is_capturing():
            return batch
        return with_tensors(batch, functools.partial(self._pinned_tensor, pins), _call_pin_memory, "pin_memory")

    def _pinned_tensor(self, pins: RingPins | None, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        if pins is not None and tensor.layout == torch.strided and pins.pinned(tensor.data_ptr()):
            return tensor
        mode = pins.mode if pins is not None else self._mode
        if mode == PAGEABLE:
            return tensor
        try:
            found = self.backend.pin(tensor)
        except RuntimeError:
            if pins is not None:
                pins.fall_to(PAGEABLE)
            self._mode = PAGEABLE
            return tensor
        self._mode = self._mode or STAGED
        return found

    def record_stream(self, batch: Any, stream: Stream) -> None:
        for tensor in tensors_in(batch):
            if tensor.device.type != "cpu":
                self.backend.lend(tensor, stream)
            elif tensor.layout == torch.strided:
                any(pins.record_stream(tensor.data_ptr(), stream) for pins in list(self._pins))


class DevicePath(_RingPath):
    """Serves device=: batches on the device, two of them ahead."""

    fenced = False

    def __init__(self, backend: DeviceBackend, transform: Transform | None) -> None:
        super().__init__(backend)
        self._transform = transform
        self._copies: Copies | None = None

    @property
    def draws(self) -> bool:
        """True when each batch has a seed of its own."""
        return self._transform is not None

    @property
    def copies(self) -> Copies:
        """The loader's copies; made at the first next(), as CUDA is not to be initialised before."""
        if self._copies is None:
            if isinstance(self._transform, torch.nn.Module):
                self._transform.to(self.backend.device)
            self._copies = Copies(self.backend, self._transform)
        return self._copies

    def begin(self, attachment: Attachment | None) -> None:
        """Begins a next(). Raises CallerError while a graph is captured: it would hold this one batch for good."""
        if self.backend.is_capturing():
            raise CallerError(
                "next() while a CUDA graph is captured; allowed: before and after. Take the batch first, and have the "
                "graph read a tensor that each batch is copied into"
            )
        _begin(attachment)
        self.copies.begin()

    def start(self, batch: Any, seed: int, attachment: Attachment | None) -> Copy:
        """Starts a copy, as Copies.start() does."""
        pins = self.pins_of(attachment)
        copy = self.copies.start(batch, seed, pins)
        if pins is None:
            self._mode = STAGED if self.copies.stages else PAGEABLE
        return copy

    def record_stream(self, batch: Any, stream: Stream) -> None:
        for tensor in tensors_in(batch):
            if tensor.device == self.backend.device:
                self.backend.lend(tensor, stream)

    def close(self) -> None:
        if self._copies is not None:
            self._copies.close()


def _begin(attachment: Attachment | None) -> None:
    catch_up()
    if attachment is not None and attachment.pins is not None:
        attachment.pins.begin()


def _call_pin_memory(value: Any) -> Any:
    return value.pin_memory()
