"""Plain attributes of a sampler travel between its two processes, and nothing else of it does."""

from __future__ import annotations

import dataclasses
import types

import pytest
from torch.utils.data import BatchSampler, RandomSampler

from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.sampler_epochs import pack_attributes, set_attributes, unpack_attributes


class Passes:
    def __init__(self, **fields) -> None:
        self.__dict__.update(fields)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


def test_numbers_and_short_texts_travel():
    one = Passes(passes=3, share=0.5, name="a", on=True, none=None)
    other = Passes(passes=0, share=1.0, name="b", on=False, none=None)
    set_attributes(other, pack_attributes(one))
    assert vars(other) == vars(one)


def test_other_attributes_stay():
    one = Passes(epoch=4, table=[1], text="x" * 1000, large=1 << 70, inner=types.SimpleNamespace())
    assert unpack_attributes(pack_attributes(one)) == {}


def test_parts_of_torch_are_left_out():
    sampler = BatchSampler(Passes(passes=2), 4, False)  # type: ignore[arg-type]
    assert list(unpack_attributes(pack_attributes(sampler)).values()) == [2]
    assert pack_attributes(BatchSampler(RandomSampler(range(3)), 4, False)) == b""
    assert pack_attributes([1, 2]) == b""


def test_epoch_without_set_epoch_travels():
    assert unpack_attributes(pack_attributes(types.SimpleNamespace(epoch=4))) == {(0, "epoch"): 4}


def test_values_for_attributes_that_are_not_there_are_left_out():
    other = types.SimpleNamespace(table=[1])
    set_attributes(other, pack_attributes(types.SimpleNamespace(table=5, passes=3)))
    assert vars(other) == {"table": [1]}


def test_slots_are_left_alone():
    @dataclasses.dataclass(slots=True)
    class Slotted:
        passes: int = 1

    assert pack_attributes(Slotted()) == b""


@pytest.mark.parametrize("packed", [b"\xc1", b"\x05", b"\x91\x05", b"\x91\x92\x00\xa1a"])
def test_damaged_attributes_are_refused(packed):
    with pytest.raises(ProtocolError, match="attributes"):
        unpack_attributes(packed)
