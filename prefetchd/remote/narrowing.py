"""Sends int64 values that fit into 16 bits as 16 bits: token ids and labels take a quarter of the network.

A batch is looked at in blocks of int64 values, whatever it holds: a block is narrow when all its values lie between 0
and 65,535. Both directions keep each byte. Measured on one CPU (2026-11-28): 0.48 s a GB to pack on the node, 0.08 s to
unpack here, which is less than a copy; receiving takes 1.2 to 2.5 s a GB. zlib's lowest level took 2.4 to 5.7 s a GB to
unpack.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

BLOCK_VALUES = 8192
BLOCK_BYTES = 8 * BLOCK_VALUES
TRIED_BLOCKS = 8
"""The blocks that are tried first, at even distances: where none is narrow the others are not looked at."""
MOST_WIDE = 0.75
"""The share of wide blocks from which on a batch is sent as it is."""


@dataclasses.dataclass(frozen=True)
class Packed:
    """A batch on its way: its bytes that are sent as they are, and the values of narrow blocks. `is_narrow` has a byte
    for each block; it is empty where nothing is narrow."""

    payload_bytes: int
    wide: Any
    narrow: Any = None
    is_narrow: bytes = b""


def pack(payload: np.ndarray[Any, Any]) -> Packed:
    """Pack a batch, an array of bytes. Where nothing is to be gained it is not copied."""
    # Here: the bridge imports this module before it knows that there is a cluster.
    import numpy as np

    size = payload.nbytes
    count = size // BLOCK_BYTES
    blocks = payload[: count * BLOCK_BYTES].view("<i8").reshape(count, BLOCK_VALUES)
    tried = blocks[:: max(1, count // TRIED_BLOCKS)]
    if not count or not _are_narrow(tried).any():
        return Packed(size, payload)
    is_narrow = _are_narrow(blocks)
    if np.count_nonzero(~is_narrow) > MOST_WIDE * count:
        return Packed(size, payload)
    narrow = blocks[is_narrow].astype(np.uint16)
    wide = np.concatenate([blocks[~is_narrow].reshape(-1).view(np.uint8), payload[count * BLOCK_BYTES :]])
    return Packed(size, wide, narrow, is_narrow.tobytes())


def _are_narrow(blocks: np.ndarray[Any, Any]) -> Any:
    return (blocks.min(axis=1) >= 0) & (blocks.max(axis=1) < 1 << 16)


def unpack(packed: Packed, target: Any) -> None:
    """Write the batch to `target`, memory of at least as many bytes."""
    import numpy as np

    payload = np.frombuffer(target, np.uint8, packed.payload_bytes)
    if not packed.is_narrow:
        payload[:] = packed.wide
        return
    is_narrow = np.frombuffer(packed.is_narrow, np.bool_)
    end = len(is_narrow) * BLOCK_BYTES
    blocks = payload[:end].view("<i8").reshape(len(is_narrow), BLOCK_VALUES)
    wide_bytes = int(np.count_nonzero(~is_narrow)) * BLOCK_BYTES
    blocks[is_narrow] = packed.narrow
    blocks[~is_narrow] = packed.wide[:wide_bytes].view("<i8").reshape(-1, BLOCK_VALUES)
    payload[end:] = packed.wide[wide_bytes:]
