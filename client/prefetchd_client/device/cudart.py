"""CheckedCudart calls cudaHostRegister and cudaHostUnregister of torch.cuda.cudart(), and checks their codes.

They return a code and raise nothing. A failure also stays behind as the thread's last error, and whoever launches a
kernel next is blamed for it: so it is taken away here. torch has no name for that; its library has.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device's context, not just the current one's."""
LARGEST_BYTES = 512 << 30
"""The most bytes that the driver takes in one call."""


class CheckedCudart:
    """Wraps `module`, which torch.cuda.cudart() returns; `clear` takes the thread's last error away."""

    def __init__(self, module: Any, clear: Callable[[], None]) -> None:
        self._module = module
        self._clear = clear

    def register(self, address: int, size: int) -> str:
        """Registers the memory. Returns an empty string, or why the memory is not pinned now; no error is left behind
        then."""
        if not 0 < size <= LARGEST_BYTES:
            return f"{size} bytes cannot be registered at once; allowed: 1 to {LARGEST_BYTES}"
        return self._checked("cudaHostRegister", lambda: self._module.cudaHostRegister(address, size, PORTABLE))

    def unregister(self, address: int) -> str:
        """Unregisters the memory. Returns an empty string, or why it did not work; no error is left behind then."""
        return self._checked("cudaHostUnregister", lambda: self._module.cudaHostUnregister(address))

    def _checked(self, name: str, call: Callable[[], Any]) -> str:
        try:
            code = int(call())
        except (RuntimeError, AttributeError) as error:
            told = f"{name}: {error}"
        else:
            if not code:
                return ""
            told = f"{name}: {self._text(code)} (error {code})"
        self._clear()
        return told

    def _text(self, code: int) -> str:
        with contextlib.suppress(Exception):
            return str(self._module.cudaGetErrorString(self._module.cudaError(code)))
        return "failed"


def last_error_clearer() -> Callable[[], None] | None:
    """Returns cudaGetLastError of the runtime that torch uses, or None where that is linked into torch itself."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {line.split(maxsplit=5)[5].rstrip("\n") for line in maps if "/libcudart" in line}
    except OSError:
        return None
    for path in sorted(paths):
        with contextlib.suppress(OSError, AttributeError):
            return _taking(ctypes.CDLL(path).cudaGetLastError)
    return None


def _taking(take: Callable[[], int]) -> Callable[[], None]:
    def clear() -> None:
        take()

    return clear
