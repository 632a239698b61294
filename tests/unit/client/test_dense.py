"""dense() has a tensor's values in the layout that default_collate gives them."""

from __future__ import annotations

import pytest
import torch
from prefetchd_client.dense import dense

INTERLEAVED = torch.arange(60).view(4, 5, 3)
VIEWS = {
    "whole": lambda it: it,
    "planes": lambda it: it.permute(2, 0, 1),
    "a crop of them": lambda it: it.permute(2, 0, 1)[:, 1:3, 1:4],
    "expanded": lambda it: it[:1].expand(4, 5, 3),
    "empty": lambda it: it[:0].permute(2, 0, 1),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bool], ids=str)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_it_has_the_same_values_side_by_side(dtype, view):
    value = view(INTERLEAVED.to(dtype))
    found = dense(value)
    assert found.is_contiguous()
    assert torch.equal(found, value)
    assert (found is value) == value.is_contiguous()


def test_what_it_made_may_be_written_to():
    value = INTERLEAVED.to(torch.uint8).permute(2, 0, 1)
    before = value.clone()
    dense(value).zero_()
    assert torch.equal(value, before)
