"""RingPins keeps account of one mapped ring on its way to a device: what is registered of it, and what of it a device
may still read. The rules, whose reasons are in decision 0060:

1. A slot is registered when a batch in it is on its way out, one in each next() at most, and stays so (`pinned`).
2. A ring's memory mode goes down and never up: registered, staged, pageable. The first slot that cannot be registered
   ends registering; status tells the mode (`fall_to`).
3. With `fenced` batches are the user's to copy: a dropped one is kept until the devices have passed it (`unread`).
   Without, whoever copies keeps the source, and a dropped batch is free.
4. Memory is unregistered before it is unmapped, after the devices have done all that was in line (`close`). A device
   that has failed reads nothing any more.
5. While a graph is captured no device may be waited for and nothing may be unregistered. What is to be done then is
   done with a later next(), or at exit (`catch_up`).
6. In a forked child CUDA is the parent's: nothing is asked of a device there, and only the mapping is let go.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from prefetchd.wire.ring_memory import RingMemory
from prefetchd.wire.segment_layout import MEMORY_MODES
from prefetchd_client.device.backend import DeviceBackend, Stream
from prefetchd_client.device.fences import Fences
from prefetchd_client.device.registration import RingRegistration

_, REGISTERED, STAGED, PAGEABLE = MEMORY_MODES

# What must wait until no graph is being captured; finalizers come when they please.
_postponed: deque[Callable[[], None]] = deque()


class RingPins:
    """Registers the ring of one attachment. `note` receives the memory mode whenever that changes (rule 2); `fenced`
    decides by rule 3 who keeps dropped batches."""

    def __init__(self, backend: DeviceBackend, ring: RingMemory, note: Callable[[str], None], *, fenced: bool) -> None:
        header = ring.header
        # Keeps the mapping until all is unregistered.
        self._mapped: Any = (ctypes.c_ubyte * 1).from_buffer(ring.memory, header.slot_payload_offset(0))
        self._backend = backend
        self._note = note
        self._pid = os.getpid()
        self._registration = RingRegistration(backend, ctypes.addressof(self._mapped), header.slots, header.slot_bytes)
        self._registration.begin()
        # Half of the slots may be held: by whoever has the latest batch, by the one that is about to be handed out, and
        # by what the devices have yet to pass.
        self._fences = Fences(backend, lambda: max(1, ring.reserved_slots // 2 - 2)) if fenced else None
        self.mode = REGISTERED
        note(REGISTERED)

    @property
    def registered_slots(self) -> int:
        return self._registration.count

    @property
    def error(self) -> str:
        """The reason why not all slots are registered; empty as long as registering goes on."""
        return self._registration.error

    def begin(self) -> None:
        """Begins a next(): one more slot may be registered."""
        self._registration.begin()

    def pinned(self, address: int) -> bool:
        """Returns True when what lies at `address` is in a registered slot; registers the slot if rule 1 allows it."""
        found = self._registration.pinned(address)
        if self._registration.error and self.mode == REGISTERED:
            self.fall_to(STAGED)
        return found

    def fall_to(self, mode: str) -> None:
        """Sets the lower memory mode `mode`, and tells status."""
        self.mode = mode
        self._note(mode)

    def record_stream(self, address: int, stream: Stream) -> bool:
        """Notes that the batch at `address` is read on `stream` too. Returns False when it is not in this ring."""
        slot = self._registration.slot_of(address)
        if slot < 0 or self._fences is None:
            return slot >= 0
        self._fences.record_stream(slot, stream)
        return True

    def unread(self, dropped: deque[Any]) -> int:
        """Returns how many of these dropped batches, from the left, no device reads any more."""
        return len(dropped) if self._fences is None or self._pid != os.getpid() else self._fences.passed(dropped)

    def when_unread(self, callback: Callable[[], None]) -> None:
        """Calls `callback` after all that the devices have in line; may be called in any thread, such as a finalizer's.
        Blocks until then, except under rule 5."""
        if self._pid != os.getpid():
            callback()
        elif self._backend.is_capturing():
            _postponed.append(lambda: self.when_unread(callback))
        else:
            # A device that has failed raises here: rule 4.
            with contextlib.suppress(RuntimeError):
                self._backend.synchronize()
            callback()

    def close(self) -> None:
        """Unregisters the slots, then lets the mapping go, by the rules 4 to 6."""
        if self._pid != os.getpid():
            self._mapped = None
        elif self._registration.count:
            self.when_unread(self._end)
        else:
            self._end()

    def _end(self) -> None:
        self._registration.close()
        self._mapped = None


def catch_up() -> None:
    """Does what was postponed while a graph was captured (rule 5)."""
    for _ in range(len(_postponed)):
        _postponed.popleft()()


atexit.register(catch_up)
