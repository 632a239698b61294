"""Batches compared to the last bit, and the two ways into a slot and out of it."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np
import torch
from prefetchd_client.batches.tensors import BatchReader

from prefetchd.wire.slot_layout import decode_row_layout, encode_meta, encode_row_layout
from prefetchd.workers.batch_codec import encode_batch
from prefetchd.workers.row_collate import plan_rows


def differences(one: Any, other: Any, where: str = "batch") -> list[str]:
    """What tells the two apart: types, dtypes, shapes, strides, bytes, keys and their order."""
    if type(one) is not type(other):
        return [f"{where}: {type(one)} and {type(other)}"]
    if isinstance(one, torch.Tensor):
        return _tensor_differences(one, other, where)
    if isinstance(one, np.ndarray):
        looks = [_look_of_array(each) for each in (one, other)]
        return [] if looks[0] == looks[1] else [f"{where}: {looks}"]
    if isinstance(one, dict):
        if list(one) != list(other):
            return [f"{where}: keys {list(one)} and {list(other)}"]
        return [each for key in one for each in differences(one[key], other[key], f"{where}[{key!r}]")]
    if isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return [f"{where}: lengths {len(one)} and {len(other)}"]
        return [found for k, pair in enumerate(zip(one, other)) for found in differences(*pair, f"{where}[{k}]")]
    if dataclasses.is_dataclass(one) and not isinstance(one, type):
        return differences(vars(one), vars(other), where)
    return [] if one == other else [f"{where}: {one!r} and {other!r}"]


def _look_of_array(array: np.ndarray) -> tuple[Any, ...]:
    content = array.tolist() if array.dtype.hasobject else array.tobytes()
    return array.dtype, array.shape, array.flags.f_contiguous, content


def _tensor_differences(one: torch.Tensor, other: torch.Tensor, where: str) -> list[str]:
    def look(tensor: torch.Tensor) -> tuple[Any, ...]:
        return tensor.dtype, tensor.shape, tensor.stride(), tensor.requires_grad, tensor_bytes(tensor)

    return [] if look(one) == look(other) else [f"{where}: {one!r} and {other!r}, {one.stride()} and {other.stride()}"]


def tensor_bytes(tensor: torch.Tensor) -> bytes:
    if not tensor.numel():
        return b""
    dense = torch.empty(tensor.numel(), dtype=tensor.dtype)
    dense.view(tensor.shape).copy_(tensor.detach())
    return bytes(dense.view(torch.uint8).numpy())


def by_rows(samples: list[Any], rows: int | None = None, first: Any = None) -> Any:
    """What a trainer sees of a batch of `samples` that was filled by rows; a full batch has `rows`, and `first` was
    the stream's first sample. Raises Deviation, and what default_collate raises of the first sample."""
    plan, layout = plan_rows(samples[0] if first is None else first, rows or len(samples))
    layout = decode_row_layout(encode_row_layout(layout))
    payload = (ctypes.c_ubyte * layout.meta.payload_bytes)(*[0xA5] * layout.meta.payload_bytes)
    write = plan.writer(layout, payload)
    for row, sample in enumerate(samples):
        write(row, sample)
    text = encode_meta(layout.meta_for(len(samples)))
    payload[: len(text)] = text
    return BatchReader().read(payload)


def by_codec(batch: Any) -> Any:
    """What a trainer sees of a batch that was written whole."""
    encoded = encode_batch(batch)
    payload = (ctypes.c_ubyte * encoded.payload_bytes)()
    encoded.write(payload)
    return BatchReader().read(payload)
