"""RingRegistration keeps account of which slots of a mapped ring are registered as pinned memory.

A slot is registered when a batch in it is on its way out, at most one in each next(), and stays so. The first failure
ends it: what is registered by then stays, and other slots are never tried.
"""

from __future__ import annotations

import threading

from prefetchd_client.device.backend import DeviceBackend


class RingRegistration:
    """Registers `slots` slots of `slot_bytes` from the address `base` on, where the ring is mapped. Close it before
    unmapping.

    close() may come from a finalizer, in another thread or amid a call of this one: hence the lock, which its holder
    may take again.
    """

    def __init__(self, backend: DeviceBackend, base: int, slots: int, slot_bytes: int) -> None:
        self.error = ""
        """Why no more slots are registered; empty as long as they are."""
        self._backend = backend
        self._base = base
        self.slots = slots
        self._slot_bytes = slot_bytes
        self._lock = threading.RLock()
        self._registered: set[int] = set()
        self._may_register = False
        self._closed = False

    @property
    def count(self) -> int:
        """The number of registered slots."""
        return len(self._registered)

    def begin(self) -> None:
        """Begins a next(): one more slot may be registered."""
        self._may_register = True

    def slot_of(self, address: int) -> int:
        """Returns the slot that `address` lies in, or -1: a private copy, or a batch of several slots, lies
        elsewhere."""
        slot = (address - self._base) // self._slot_bytes
        return slot if 0 <= slot < self.slots else -1

    def pinned(self, address: int) -> bool:
        """Returns True when the slot at `address` is registered now; this call may be what registers it."""
        slot = self.slot_of(address)
        if slot in self._registered:
            return True
        if slot < 0 or not self._may_register or self.error:
            return False
        with self._lock:
            if self._closed:
                return False
            self._may_register = False
            self.error = self._backend.register(self._address(slot), self._slot_bytes)
            if self.error:
                return False
            self._registered.add(slot)
            if self._closed:  # by a finalizer meanwhile
                self._unregister_all()
                return False
        return True

    def close(self) -> None:
        """Unregisters all slots; none is registered afterwards. The device must have done what reads them.
        Idempotent."""
        with self._lock:
            self._closed = True
            self._unregister_all()

    def _unregister_all(self) -> None:
        while self._registered:
            # First taken out: none is unregistered twice, whatever happens.
            self._backend.unregister(self._address(self._registered.pop()))

    def _address(self, slot: int) -> int:
        return self._base + slot * self._slot_bytes
