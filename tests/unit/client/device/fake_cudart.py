"""What torch.cuda.cudart() returns, failing as told. A failure stays behind as the last error until it is taken."""

from __future__ import annotations

import enum

CudaError = enum.IntEnum(
    "CudaError",
    {
        "success": 0,
        "cudaErrorInvalidValue": 1,
        "cudaErrorMemoryAllocation": 2,
        "cudaErrorIllegalAddress": 700,
        "cudaErrorHostMemoryAlreadyRegistered": 712,
        "cudaErrorHostMemoryNotRegistered": 713,
        "cudaErrorNotSupported": 801,
    },
)
WSL_LIMIT_BYTES = 1 << 30


READ_ONLY = 8
"""cudaHostRegisterReadOnly."""


class FakeCudart:
    """With WSL's limit on what may be registered in all, if `limit_bytes` is it. What is mapped `read_only` is
    registered with a flag that says so, and not otherwise."""

    cudaError = CudaError  # noqa: N815

    def __init__(self, limit_bytes: int = 1 << 40, next_codes: tuple[int, ...] = ()) -> None:
        self.last_error = CudaError.success
        self.registered: dict[int, int] = {}
        self.calls: list[str] = []
        self.read_only: set[int] = set()
        self._limit_bytes = limit_bytes
        self._next_codes = list(next_codes)

    def cudaHostRegister(self, address: int, size: int, flags: int) -> CudaError:  # noqa: N802
        self.calls.append("register")
        if self._next_codes:
            return self._told(self._next_codes.pop(0))
        if not size or flags & ~READ_ONLY != 1 or (address in self.read_only) != bool(flags & READ_ONLY):
            return self._told(CudaError.cudaErrorInvalidValue)
        if address in self.registered:
            return self._told(CudaError.cudaErrorHostMemoryAlreadyRegistered)
        if sum(self.registered.values()) + size > self._limit_bytes:
            return self._told(CudaError.cudaErrorMemoryAllocation)
        self.registered[address] = size
        return CudaError.success

    def cudaHostUnregister(self, address: int) -> CudaError:  # noqa: N802
        self.calls.append("unregister")
        if self.registered.pop(address, None) is None:
            return self._told(CudaError.cudaErrorHostMemoryNotRegistered)
        return CudaError.success

    def is_pinned(self, address: int) -> bool:
        """As cudaPointerGetAttributes tells Tensor.is_pinned(), once CUDA is initialised."""
        return any(begin <= address < begin + size for begin, size in self.registered.items())

    def cudaGetErrorString(self, error: CudaError) -> str:  # noqa: N802
        return error.name

    def take_last_error(self) -> CudaError:
        """cudaGetLastError, which torch does not name."""
        found, self.last_error = self.last_error, CudaError.success
        return found

    def launch(self) -> None:
        """A kernel of somebody else's, after which torch looks at the last error."""
        if found := self.take_last_error():
            raise RuntimeError(f"CUDA error: {found.name}")

    def _told(self, code: int) -> CudaError:
        self.last_error = CudaError(code)
        return self.last_error
