"""Says which tensors are nothing but their numbers: what these and the shape tell is all that there is."""

from __future__ import annotations

import torch


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    """Returns True for a dense tensor in the CPU's memory, without a gradient, a scale, a pending operation or
    attributes of its own. Whether a format knows its class and dtype is the format's affair."""
    return (
        tensor.layout is torch.strided
        and tensor.is_cpu
        and not tensor.requires_grad
        and not tensor.is_nested
        and not tensor.is_quantized
        and not tensor.is_conj()
        and not tensor.is_neg()
        and not tensor.__dict__
    )
