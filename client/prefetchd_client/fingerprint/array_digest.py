"""This module digests arrays and tensors by type, shape, strides and content.

Each function gives the values that stand for one array; the walk digests them in turn. Content is read at memory speed,
in pieces that a signal can come between, and never copied when it is dense.
"""

from __future__ import annotations

import ctypes
import marshal
import mmap
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
import xxhash

from prefetchd_client.fingerprint.code_digest import MARSHAL_VERSION

Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_PLAIN_KINDS = frozenset("biufcmMSU")
_LONG_DOUBLES = frozenset("gG")
_PIECE_BYTES = 64 << 20
# Where numpy 1 had it.
_byte_bounds: Any = getattr(getattr(np.lib, "array_utils", np), "byte_bounds")  # noqa: B009


def array_values(array: Array) -> Sequence[object]:
    """Returns the values that stand for an array. A mapped file (np.memmap, and views of one) counts by name, place,
    size and time of change, not by content."""
    dtype = array.dtype
    shape = (dtype, array.shape, array.strides)
    mapped = _mapped_file(array)
    if mapped is not None:
        return ["mapped", *mapped, *shape]
    if _is_plain(dtype):
        return ["content", marshal.dumps((dtype.str, *shape[1:]), MARSHAL_VERSION), _memory_digest(array)]
    if dtype.names is not None:
        # Field by field: the padding between fields holds whatever was in memory.
        return ["fields", *shape, *(array[name] for name in dtype.names)]
    if dtype.char in _LONG_DOUBLES:
        return ["long double", *shape, *_long_double_values(array)]
    if dtype.kind == "V" and not dtype.hasobject:
        return ["content", *shape, _memory_digest(array)]
    return ["objects", *shape, array.reshape(-1).tolist()]


def scalar_values(scalar: np.generic) -> Sequence[object]:
    """Returns the values that stand for a scalar, as for an array without dimensions."""
    if _is_plain(scalar.dtype):
        return [scalar.dtype.str, scalar.tobytes()]
    return [np.asarray(scalar)]


def dtype_values(dtype: np.dtype[Any]) -> Sequence[object] | None:
    """Returns the type's short name, or None when that does not say everything."""
    return [dtype.str] if _is_plain(dtype) or dtype.char in _LONG_DOUBLES else None


def _is_plain(dtype: np.dtype[Any]) -> bool:
    """Returns True when the type's short name says everything and each byte in memory is content."""
    return dtype.kind in _PLAIN_KINDS and dtype.char not in _LONG_DOUBLES and dtype.metadata is None


def tensor_values(tensor: torch.Tensor) -> Sequence[object] | None:
    """Returns the values that stand for a tensor. Returns None for tensors without plain strided memory (sparse,
    quantised, wrapped): those say how they are rebuilt."""
    with torch._C.DisableTorchFunctionSubclass():
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
            return None
        try:
            shape = (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.requires_grad, str(tensor.device))
            head = marshal.dumps(shape, MARSHAL_VERSION)
            attributes = vars(tensor) or None
            if tensor.device.type == "meta":
                return ["meta", head, attributes]
            dense = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().as_subclass(torch.Tensor)
            content = dense.reshape(-1).view(torch.uint8).numpy()
        except (RuntimeError, TypeError, NotImplementedError):
            return None
        return ["content", head, _digest_in_pieces(content.data), attributes]


def memory_block(array: object) -> tuple[int, int] | None:
    """Returns (address, bytes) of the memory that an array or a tensor on the CPU looks at, from its first to its last
    byte. Returns None where there is none, or it is a file's, which others may write to."""
    if isinstance(array, torch.Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            if array.layout is not torch.strided or not array.is_cpu or array.is_nested or array.is_quantized:
                return None
            storage = array.untyped_storage()
            return (storage.data_ptr(), storage.nbytes()) if storage.nbytes() else None
    if not isinstance(array, np.ndarray) or not array.size or _mapped_file(array) is not None:
        return None
    low, high = _byte_bounds(array)
    return low, high - low


def content_digest(array: object) -> bytes | None:
    """Returns the digest of all bytes of the array's memory_block, or None where there is none. Reads at memory speed,
    in pieces that a signal can come between."""
    block = memory_block(array)
    if block is None:
        return None
    address, nbytes = block
    return _digest_in_pieces(memoryview((ctypes.c_ubyte * nbytes).from_address(address)))


def storage_values(storage: torch.UntypedStorage) -> Sequence[object]:
    """Returns the values that stand for a bare storage: its bytes."""
    return [str(storage.device), tensor_values(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))]


def _memory_digest(array: Array) -> bytes:
    # A transposed view of column-major memory is row-major: no copy. The strides tell them apart.
    ordered = np.asarray(array.T if array.flags.f_contiguous else array)
    if ordered.flags.c_contiguous:
        return _digest_in_pieces(ordered.reshape(-1).view(np.uint8).data)
    content = xxhash.xxh3_128()
    rows = max(1, _PIECE_BYTES * len(ordered) // max(1, ordered.nbytes))
    for at in range(0, len(ordered), rows):
        content.update(np.ascontiguousarray(ordered[at : at + rows]).reshape(-1).view(np.uint8).data)
    return content.digest()


def _digest_in_pieces(memory: memoryview) -> bytes:
    """Returns the digest of some bytes. A signal, such as Ctrl-C, is heard after each piece."""
    content = xxhash.xxh3_128()
    for at in range(0, len(memory), _PIECE_BYTES):
        content.update(memory[at : at + _PIECE_BYTES])
    return content.digest()


def _long_double_values(array: Array) -> list[Array]:
    """Returns the exact parts of long doubles: ten bytes of each count, the other six are whatever was in memory."""
    parts = [array.real, array.imag] if array.dtype.char == "G" else [array]
    values: list[Array] = []
    for part in parts:
        mantissa, exponent = np.frexp(part)
        high = mantissa.astype(np.float64)
        values += [high, (mantissa - high).astype(np.float64), np.asarray(exponent)]
    return values


def _mapped_file(array: Array) -> tuple[object, ...] | None:
    base: Any = array
    while isinstance(base, np.ndarray):
        mapping = getattr(base, "_mmap", None)
        if isinstance(base, np.memmap) and isinstance(mapping, mmap.mmap) and base.filename is not None:
            start: int = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
            # The mapping begins at the allocation boundary below `offset`; a view keeps the `offset` of the whole.
            place = array.__array_interface__["data"][0] - start
            place += base.offset - base.offset % mmap.ALLOCATIONGRANULARITY
            try:
                status = os.stat(base.filename)
            except OSError:
                return None
            return (os.path.abspath(base.filename), place, base.mode, status.st_mtime_ns, status.st_size)
        base = base.base
    return None
