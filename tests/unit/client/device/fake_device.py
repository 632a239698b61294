"""A device that does its work when it likes: as late as it may, or in a random order that the streams allow.

Device memory is ordinary memory, handed out again as soon as the rules allow it. A copy out of pinned memory reads it
when the copy is done, by its address alone, as DMA does: whoever released or unregistered it before is caught, by what
then comes out or by `violations`.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch


class Mark:
    """A place in a stream's line."""

    def __init__(self, stream: FakeStream) -> None:
        self.stream = stream
        self.done = False


class FakeEvent:
    """Stands for the mark that it was recorded at last."""

    def __init__(self, device: FakeDevice, mark: Mark) -> None:
        self._device = device
        self.mark = mark

    @property
    def done(self) -> bool:
        return self.mark.done

    def query(self) -> bool:
        self._device.check("an event was asked")
        self._device.work_a_little()
        return self.done

    def synchronize(self) -> None:
        self._device.check("an event was waited for")
        self._device.work_until(self.mark)


class FakeStream:
    """`held`: its work is not begun until someone must have it, or release() is called."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.line: deque[tuple[str, Any]] = deque()
        self.held = False


class FakeDevice:
    """As DeviceBackend promises, for device "cpu". `order` None: nothing is done before somebody must have it.

    `transfers` are the streams that copies were put in line on; `elsewhere` the current streams of other devices.
    """

    def __init__(self, order: random.Random | None = None) -> None:
        self.device = torch.device("cpu")
        self.violations: list[str] = []
        self.registered: dict[int, int] = {}
        self.registrations: list[int] = []
        self.refuses = ""
        self.has_pinned_memory = True
        self.capturing = False
        self.own_generator: torch.Generator | None = torch.Generator()
        self.transfers: list[FakeStream] = []
        self.elsewhere: list[FakeStream] = []
        self._order = order
        self._default = FakeStream("default")
        self._streams = [self._default]
        self._current = [self._default]
        self._free: dict[tuple[str, int], list[Any]] = {}
        self._waiting: list[tuple[list[Mark], tuple[str, int], Any]] = []
        self._lent: dict[int, list[FakeStream]] = {}
        self._blocks: list[Any] = []
        self._pinned: list[tuple[int, int]] = []

    # --- DeviceBackend ---

    def register(self, address: int, size: int) -> str:
        self.check("memory was registered")
        assert size > 0
        if self.refuses:
            return self.refuses
        if any(address < begin + length and begin < address + size for begin, length in self.registered.items()):
            self.violations.append("memory was registered twice")
            return "already registered"
        self.registered[address] = size
        self.registrations.append(address)
        return ""

    def unregister(self, address: int) -> str:
        self.check("memory was unregistered")
        size = self.registered.pop(address, 0)
        if not size:
            self.violations.append("memory was unregistered that is not registered")
        elif not is_mapped(address, size):
            self.violations.append("memory was unmapped before it was unregistered")
        return ""

    def pinned(self, size: int) -> torch.Tensor:
        if not self.has_pinned_memory:
            raise RuntimeError("no pinned memory is left")
        block = (ctypes.c_ubyte * size)()
        self._blocks.append(block)
        self._pinned.append((ctypes.addressof(block), size))
        return torch.frombuffer(block, dtype=torch.uint8)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        if self.is_pinned(tensor):
            return tensor
        if not tensor.numel():
            return tensor.clone()
        found = like(tensor, self.pinned(tensor.numel() * tensor.element_size()))
        return found.copy_(tensor)

    def current_stream(self) -> FakeStream:
        return self._current[-1]

    def current_streams(self) -> list[FakeStream]:
        return [self._current[-1], *self.elsewhere]

    def new_stream(self) -> FakeStream:
        stream = FakeStream(f"stream {len(self._streams)}")
        self._streams.append(stream)
        return stream

    @contextlib.contextmanager
    def on(self, stream: FakeStream) -> Iterator[None]:
        self._current.append(stream)
        try:
            yield
        finally:
            self._current.pop()

    def record(self, stream: FakeStream, event: FakeEvent | None = None) -> FakeEvent:
        self.check("an event was recorded")
        mark = Mark(stream)
        stream.line.append(("record", mark))
        if event is None:
            return FakeEvent(self, mark)
        event.mark = mark
        return event

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        stream.line.append(("wait", event.mark))
        self.work_a_little()

    def follow(self, stream: FakeStream, other: FakeStream) -> None:
        self.wait(stream, self.record(other))

    def empty_like(self, tensor: torch.Tensor) -> torch.Tensor:
        size = tensor.numel() * tensor.element_size()
        if not size:
            return torch.empty_like(tensor)
        for entry in [each for each in self._waiting if all(event.done for event in each[0])]:
            self._waiting.remove(entry)
            self._free.setdefault(entry[1], []).append(entry[2])
        key = (self._current[-1].name, size)
        pool = self._free.setdefault(key, [])
        if pool:
            block = pool.pop()
        else:
            block = (ctypes.c_ubyte * size)()
            self._blocks.append(block)
        # Dies with the last tensor that looks at it.
        holder = (ctypes.c_ubyte * size).from_buffer(block)
        weakref.finalize(holder, self._freed, key, block).atexit = False
        return like(tensor, torch.frombuffer(holder, dtype=torch.uint8))

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        self.transfers.append(self._current[-1])
        size = source.numel() * source.element_size()
        to, begin = target.data_ptr(), source.data_ptr()
        if not self.is_pinned(source) or target.stride() != source.stride():
            # CUDA reads pageable memory before it returns.
            laid_out = like(target, None).copy_(source)
            read = ctypes.string_at(laid_out.data_ptr(), size)
            self.kernel(lambda: ctypes.memmove(to, read, size))
            return

        def transfer() -> None:
            if not self._is_pinned_memory(begin):
                self.violations.append("a copy read memory that was unregistered meanwhile")
            else:
                ctypes.memmove(to, begin, size)

        self.kernel(transfer)

    def lend(self, tensor: torch.Tensor, stream: FakeStream) -> None:
        self._lent.setdefault(tensor.data_ptr(), []).append(stream)

    def generator(self) -> torch.Generator | None:
        return self.own_generator

    def is_capturing(self) -> bool:
        return self.capturing

    def synchronize(self) -> None:
        self.check("the device was waited for")
        for stream in self._streams:
            self.work_until(self.record(stream).mark)

    # --- for tests ---

    def kernel(self, work: Callable[[], Any]) -> None:
        """Puts `work` in line on the current stream."""
        self._current[-1].line.append(("run", work))
        self.work_a_little()

    def read(self, tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
        """A kernel on the current stream that reads `tensor`; what it has read, once the device is through."""
        found, size = like(tensor, None), tensor.numel() * tensor.element_size()
        address = tensor.data_ptr()
        if size:
            self.kernel(lambda: ctypes.memmove(found.data_ptr(), address, size))

        def result() -> torch.Tensor:
            self.synchronize()
            return found

        return result

    def delay(self, stream: FakeStream) -> None:
        """Nothing of what is in line there is begun until somebody must have it."""
        stream.held = True

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return self._is_pinned_memory(tensor.data_ptr())

    def work_a_little(self) -> None:
        if self._order is not None:
            for _ in range(self._order.randrange(4)):
                ready = [each for each in self._streams if each.line and not each.held and self._may_go(each)]
                if ready:
                    self._step(self._order.choice(ready))

    def work_until(self, event: Mark) -> None:
        """Only what must be done for it."""
        while not event.done:
            stream = event.stream
            assert stream.line, "an event that can never come"
            kind, what = stream.line[0]
            if kind == "wait" and not what.done:
                self.work_until(what)
            self._step(stream)

    def check(self, what: str) -> None:
        if self.capturing:
            self.violations.append(f"{what} while a graph was captured")

    def _may_go(self, stream: FakeStream) -> bool:
        kind, what = stream.line[0]
        return kind != "wait" or what.done

    def _step(self, stream: FakeStream) -> None:
        kind, what = stream.line.popleft()
        if kind == "record":
            what.done = True
        elif kind == "run":
            what()

    def _freed(self, key: tuple[str, int], block: Any) -> None:
        lent = self._lent.pop(ctypes.addressof(block), [])
        if lent:
            events = []
            for stream in lent:
                events.append(Mark(stream))
                stream.line.append(("record", events[-1]))
            self._waiting.append((events, key, block))
        else:
            self._free.setdefault(key, []).append(block)

    def _is_pinned_memory(self, address: int) -> bool:
        ranges = [*self.registered.items(), *self._pinned]
        return any(begin <= address < begin + size for begin, size in ranges)


def like(tensor: torch.Tensor, flat: torch.Tensor | None) -> torch.Tensor:
    """`flat` memory, or fresh one, laid out as `tensor` is."""
    pattern = torch.empty_like(tensor)
    return pattern if flat is None else flat.view(tensor.dtype).as_strided(tensor.shape, pattern.stride())


def is_mapped(address: int, size: int) -> bool:
    with open("/proc/self/maps", encoding="utf-8") as maps:
        ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
    covered = address
    for begin, end in sorted(ranges):
        if begin <= covered < end:
            covered = end
    return covered >= address + size
