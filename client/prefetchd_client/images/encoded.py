"""This module reads encoded pictures from what datasets hand on: paths, bytes, tensors of bytes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

Encoded: TypeAlias = "bytes | np.ndarray[Any, np.dtype[np.uint8]]"
"""The content of a picture's file."""


def read_encoded(source: Any) -> Encoded:
    """Returns the content of a file by its path, or what `source` holds of one. Raises TypeError for what is neither a
    path nor bytes, and OSError for a file that cannot be read."""
    if isinstance(source, (str, os.PathLike)):
        return Path(source).read_bytes()
    if isinstance(source, bytes):
        return source
    if isinstance(source, (bytearray, memoryview)):
        return bytes(source)
    if isinstance(source, torch.Tensor) and source.dtype == torch.uint8 and source.dim() == 1:
        source = source.numpy()
    if isinstance(source, np.ndarray) and source.dtype == np.uint8 and source.ndim == 1:
        return np.ascontiguousarray(source)
    raise TypeError(
        f"got {type(source).__name__}; allowed: a path, bytes, or a tensor or array of uint8 in one dimension. For an "
        "ImageFolder say loader=str: it then hands paths on, where it would hand on decoded pictures"
    )
