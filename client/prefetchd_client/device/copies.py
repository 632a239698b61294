"""Copies runs a loader's copies to the device, on a stream of their own.

The copy waits for the consumer's stream: what it writes to may be memory that a batch before had, and kernels that are
in line there may still read. What a transform makes is memory of the copies' stream; that waits for all streams that
batches were handed to. The consumer's stream waits for the copy. What the copy reads, a slot or a buffer, is kept until
the event after it is done; and there is nothing else that guards it.

So nothing is lent as long as one stream consumes: memory that was lent takes longer to come back, and ends a forked
child that drops it, such as a worker of a DataLoader beside us whose garbage it was.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from prefetchd_client.device.backend import DeviceBackend, Event, Stream
from prefetchd_client.device.pins import PAGEABLE, RingPins
from prefetchd_client.device.staging import Staging, aligned, staged
from prefetchd_client.device.structures import tensors_in, with_tensors
from prefetchd_client.seeding import seeded

AHEAD = 2
"""Batches that are copied before they are due. With the one that is due they are half of the smallest ring."""

EVENTS = 2 * (AHEAD + 1)
"""How many events there are: one for each copy that is under way, and for each that an iterator has yet to hand out."""


class Copy:
    """Describes a batch on its way to the device. `kept` is what the device reads, `targets` what it writes."""

    __slots__ = ("batch", "buffer", "consumer", "copied", "kept", "targets")

    def __init__(self, consumer: Stream) -> None:
        self.batch: Any = None
        self.consumer = consumer
        self.copied: Event | None = None
        self.kept: list[Any] = []
        self.targets: list[torch.Tensor] = []
        self.buffer: torch.Tensor | None = None


class Copies:
    """Runs all copies of one loader. One thread at a time."""

    def __init__(self, backend: DeviceBackend, transform: Callable[[Any], Any] | None) -> None:
        self._backend = backend
        self._transform = transform
        self._stream = backend.new_stream()
        self._staging = Staging(backend)
        self._under_way: deque[Copy] = deque()
        # Used again in turn, since to make one takes longer than to record it. All are of one stream: whoever still
        # asks for a former place in its line gets a later one, and waits longer than it must, never less.
        self._events: deque[Event | None] = deque([None] * EVENTS)
        self._consumer: Stream = None
        self._consumers: list[Stream] = []
        """The streams that batches were handed to, and that memory of the copies' stream may be read on."""

    def begin(self) -> None:
        """Begins a next() on the stream that is current now; what follows is for that stream."""
        self._consumer = self._backend.current_stream()

    @property
    def stages(self) -> bool:
        """True when batches that are not registered are staged; False once there was no pinned memory for that."""
        return self._staging.is_possible

    def free_finished(self) -> None:
        """Frees what the device has read."""
        while self._under_way:
            copied = self._under_way[0].copied
            if copied is None or not copied.query():
                return
            self._let_go(self._under_way.popleft())

    def make_room(self) -> None:
        """Blocks until one more copy may be under way: slots, buffers and the trainer's lead over its device are
        bounded by this."""
        self.free_finished()
        while len(self._under_way) > AHEAD:
            self._wait_for(self._under_way[0])
            self._let_go(self._under_way.popleft())

    def start(self, batch: Any, seed: int, pins: RingPins | None) -> Copy:
        """Puts the copy of `batch` in line, and the transform after it, which draws from `seed`. Raises what these
        raise; what was in line by then is kept as long as any other copy."""
        backend = self._backend
        copy = Copy(self._consumer)
        self._under_way.append(copy)
        try:
            pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
            copy.batch = with_tensors(
                batch, lambda each: self._target(each, copy, pairs), lambda each: self._moved(each, copy), "to"
            )
            # After the memory was had, and before it is written to.
            backend.follow(self._stream, copy.consumer)
            for consumer in self._consumers:
                # Streams are compared in Python: first by what they are.
                if consumer is not copy.consumer and consumer != copy.consumer:
                    backend.follow(self._stream, consumer)
            with backend.on(self._stream):
                self._copy(copy, pairs, pins)
                if self._transform is not None:
                    with torch.no_grad(), seeded(seed, backend.generator()):
                        copy.batch = self._transform(copy.batch)
        except BaseException:
            # What has gone over by itself did so on the consumer's stream.
            backend.follow(self._stream, copy.consumer)
            raise
        finally:
            copy.copied = self._events[0] = backend.record(self._stream, self._events[0])
            self._events.rotate(-1)
        return copy

    def hand_out(self, copy: Copy) -> Any:
        """Returns the batch, for work on the consumer's stream."""
        backend, consumer = self._backend, self._consumer
        assert copy.copied is not None
        backend.wait(consumer, copy.copied)
        if consumer is not copy.consumer and consumer != copy.consumer:
            # Its memory goes back there.
            backend.wait(copy.consumer, copy.copied)
            for tensor in tensors_in(copy.batch):
                if tensor.device == backend.device:
                    backend.lend(tensor, consumer)
        if self._transform is not None and consumer not in self._consumers:
            self._consumers.append(consumer)
        batch, copy.batch, copy.targets = copy.batch, None, []
        return batch

    def close(self) -> None:
        """Blocks until the device reads nothing any more, and frees all copies. What was not handed out is gone.
        Idempotent."""
        # A device that has failed reads nothing any more.
        with contextlib.suppress(RuntimeError):
            for copy in self._under_way:
                self._wait_for(copy)
        self._under_way.clear()

    def _target(self, tensor: torch.Tensor, copy: Copy, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Any:
        if tensor.device.type != "cpu":
            return tensor
        if type(tensor) is not torch.Tensor or tensor.layout != torch.strided or tensor.requires_grad:
            return self._moved(tensor, copy)
        target = self._backend.empty_like(tensor)
        if target.numel():
            pairs.append((target, tensor))
            copy.targets.append(target)
        return target

    def _moved(self, value: Any, copy: Copy) -> Any:
        """Moves a value that has a method `to` on the consumer's stream: how it gets to a device, and with which
        memory, is unknown here."""
        if not hasattr(value, "to"):
            return value
        copy.kept.append(value)
        try:
            return value.to(self._backend.device, non_blocking=True)
        except TypeError:
            return value.to(self._backend.device)

    def _copy(self, copy: Copy, pairs: list[tuple[torch.Tensor, torch.Tensor]], pins: RingPins | None) -> None:
        unpinned = [each for each in pairs if pins is None or not pins.pinned(each[1].data_ptr())]
        size = sum(aligned(target.numel() * target.element_size()) for target, _ in unpinned)
        copy.buffer = self._staging.take(size) if unpinned else None
        if not self._staging.is_possible and pins is not None and pins.mode != PAGEABLE:
            pins.fall_to(PAGEABLE)
        offset = 0
        through = {id(target) for target, _ in unpinned} if copy.buffer is not None else set()
        for target, source in pairs:
            if id(target) in through and copy.buffer is not None:
                source = staged(source, target, copy.buffer, offset)
                offset += aligned(target.numel() * target.element_size())
            else:
                copy.kept.append(source)
            self._backend.copy(target, source)

    def _wait_for(self, copy: Copy) -> None:
        if copy.copied is None:
            self._backend.synchronize()
        else:
            copy.copied.synchronize()

    def _let_go(self, copy: Copy) -> None:
        copy.kept, copy.targets = [], []
        if copy.buffer is not None:
            self._staging.give_back(copy.buffer)
            copy.buffer = None
