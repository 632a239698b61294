"""Whole batches into a slot and out of it: bytes, strides, aliasing and types survive."""

from __future__ import annotations

import collections
import ctypes
import dataclasses
import decimal
import enum
import pathlib
import pickle
import sys
import types
import weakref
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from prefetchd_client.batches.tensors import BatchReader

from prefetchd.wire.errors import RemoteError
from prefetchd.wire.slot_layout import DTYPES
from prefetchd.workers.batch_codec import SMALLEST_BUFFER_BYTES, encode_batch
from tests.budgets import tries
from tests.unit.workers.comparing import by_codec, differences


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Sample:
    image: torch.Tensor
    label: str
    rest: Any = None


class Special(torch.Tensor):
    pass


class Slotted:
    __slots__ = ("value",)


class Colour(enum.Enum):
    RED = "red"


def assert_survives(batch: Any) -> Any:
    found = by_codec(batch)
    assert differences(found, batch) == []
    return found


# --- tensors ---


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("shape", [(), (4,), (2, 3), (0,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tensors_of_every_dtype_and_shape(dtype, shape):
    count = int(np.prod(shape)) * getattr(torch, dtype).itemsize
    noise = torch.randint(0, 2 if dtype == "bool" else 256, (count,), dtype=torch.uint8)
    assert_survives(noise.view(getattr(torch, dtype)).reshape(shape) if count else torch.empty(shape))


IMAGES = torch.arange(120.0).reshape(2, 3, 4, 5)


@pytest.mark.parametrize(
    "tensor",
    [
        IMAGES.permute(0, 2, 3, 1),
        IMAGES.to(memory_format=torch.channels_last),
        IMAGES[1],
        IMAGES[:, 1:, ::2],
        IMAGES[1, 2, 3, 4],
        torch.ones(3, 1).t(),
        torch.ones(5, 1)[:, :1].expand(5, 7),
        torch.ones(1, 4)[:, ::2],
        torch.tensor([1.0]).expand(3, 3),
        torch.empty_strided((2, 0), (7, 1)),
        torch.arange(10)[10:],
    ],
    ids=lambda tensor: f"{tuple(tensor.shape)} by {tensor.stride()}",
)
def test_strides_survive(tensor):
    assert_survives(tensor)
    assert_survives([tensor, tensor.unsqueeze(0), torch.ones(1)])


@given(st.data())
@tries(150)
def test_any_views_of_one_storage_survive_and_stay_views(data):
    base = torch.arange(64, dtype=data.draw(st.sampled_from([torch.int16, torch.float64, torch.uint8])))
    views = []
    for _ in range(data.draw(st.integers(1, 4))):
        shape = data.draw(st.lists(st.integers(0, 3), max_size=3).map(tuple))
        strides = tuple(data.draw(st.integers(0, 9)) for _ in shape)
        reach = sum((size - 1) * stride for size, stride in zip(shape, strides) if size)
        views.append(base.as_strided(shape, strides, data.draw(st.integers(0, 63 - reach))))
    found = assert_survives(views)
    filled = [view for view in found if view.numel()]
    for view in filled:
        view.fill_(77)
    for view in views:
        view.fill_(77)
    assert differences(found, views) == [], "what is written to one shows in the others, and nowhere else"


def test_aliases_are_aliases_again():
    tensor = torch.zeros(4)
    first, again, view, apart = by_codec([tensor, tensor, tensor[2:], tensor.clone()])
    assert again is first
    view[0] = 5
    assert first.tolist() == [0, 0, 5, 0]
    assert apart.tolist() == [0, 0, 0, 0]


def test_tensors_that_share_memory_but_no_storage_object_share_it_again():
    array = np.zeros(4, np.float32)
    one, other = by_codec([torch.from_numpy(array), torch.from_numpy(array[1:])])
    assert differences([one, other], [torch.zeros(4), torch.zeros(3)]) == []


def test_of_a_storage_only_what_is_looked_at_is_copied():
    base = torch.zeros(1 << 20, dtype=torch.uint8)
    assert encode_batch([base[5:10], base[100:300]]).payload_bytes < 2048
    assert encode_batch([base[5:10], base[1 << 19 :]]).payload_bytes < (1 << 20) + 2048


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.tensor([1.0, 2], requires_grad=True),
        lambda: torch.tensor([1 + 2j, 3]).conj(),
        lambda: torch.tensor([1 + 2j, 3]).conj().imag,
        lambda: torch.nn.Parameter(torch.arange(3.0)),
        lambda: torch.ones(3).as_subclass(Special),
    ],
    ids=["requires grad", "conjugate", "negated", "parameter", "subclass"],
)
def test_tensors_that_are_more_than_a_view(make):
    # Beside the tensor another view, whose bytes are found by a different way.
    tensor = make()
    found, _ = assert_survives([tensor, torch.arange(3)])
    assert found.is_conj() == tensor.is_conj()


def test_a_subclass_and_a_tensor_of_one_storage_still_share_it():
    tensor = torch.zeros(6)
    special, plain = by_codec([tensor.as_subclass(Special)[1:], tensor[2:]])
    plain[0] = 3
    assert type(special) is Special
    assert special.tolist() == [0, 3, 0, 0, 0]


def test_attributes_of_a_tensor_come_with_it():
    tensor = torch.ones(2)
    tensor.label = "cat"
    found = assert_survives((tensor, 1))
    assert found[0].label == "cat"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_sparse_tensors_live_no_longer_than_they_are_held(layout):
    """torch keeps those that it unpickles until its next torch.load(): a slot would never be released."""
    found = by_codec([torch.eye(3).to_sparse(layout=layout)])
    lives = weakref.ref(found[0])
    del found
    assert lives() is None


def test_sparse_tensors():
    sparse = torch.eye(3).to_sparse()
    found = by_codec({"sparse": sparse})["sparse"]
    assert found.layout is torch.sparse_coo
    assert torch.equal(found.to_dense(), torch.eye(3))


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_bare_storages():
    tensor = torch.arange(4, dtype=torch.int32)
    untyped, typed, view = by_codec([tensor.untyped_storage(), tensor._typed_storage(), tensor[1:]])
    assert bytes(untyped) == tensor.numpy().tobytes()
    assert (typed.dtype, typed.tolist()) == (torch.int32, [0, 1, 2, 3])
    view[0] = 9
    assert typed.tolist() == [0, 9, 2, 3]


# --- arrays and buffers ---


@pytest.mark.parametrize("count", [1, SMALLEST_BUFFER_BYTES // 8 - 1, SMALLEST_BUFFER_BYTES // 8, 5000])
@pytest.mark.parametrize(
    "look",
    [
        lambda array: array,
        lambda array: array.reshape(-1, 1),
        lambda array: np.asfortranarray(array.reshape(1, -1)),
        lambda array: array.astype(">f8"),
        lambda array: array.view("V8"),
        lambda array: np.array([str(each) for each in array]),
    ],
    ids=["plain", "column", "Fortran", "other byte order", "records", "strings"],
)
def test_arrays_in_the_pickle_and_beside_it(count, look):
    assert_survives({"array": look(np.arange(count, dtype=np.float64)), "after": torch.ones(2)})


def test_arrays_that_are_not_contiguous_come_as_their_values():
    array = np.arange(9000.0).reshape(3, 3000)
    found = by_codec([array[:, ::2], array.T])
    assert np.array_equal(found[0], array[:, ::2])
    assert np.array_equal(found[1], array.T)


def test_a_read_only_array_can_be_read():
    array = np.arange(1000)
    array.flags.writeable = False
    assert np.array_equal(by_codec(array), np.arange(1000))


def test_objects_and_records_in_arrays():
    assert_survives(np.array([(1, 2.5)] * 100, dtype=[("a", "i4"), ("b", "f8")]))
    found = by_codec(np.array([{"a": 1}, None, "x"], dtype=object))
    assert found.tolist() == [{"a": 1}, None, "x"]


def test_one_array_twice_is_one_array():
    array = np.arange(1000)
    one, other = by_codec([array, array])
    assert one is other


# --- anything else ---


@pytest.mark.parametrize(
    "batch",
    [
        None,
        "a string",
        "ß" * 100_000,
        b"bytes",
        bytes(100_000),
        bytearray(b"x" * 100_000),
        12,
        1 << 200,
        1.5,
        3j,
        True,
        [],
        {},
        (),
        [{"a": [(torch.ones(2), "x"), None]}, {"b": np.ones(3)}],
        Pair(torch.ones(2), ["cat", "dog"]),
        Sample(torch.ones(2), "cat", Sample(torch.zeros(1), "dog")),
        {Colour.RED, 1},
        frozenset("ab"),
        Colour.RED,
        pathlib.PurePosixPath("/data/a.png"),
        decimal.Decimal("1.5"),
        slice(1, 2),
        np.float32(1.5),
        np.datetime64("2024-01-01"),
        torch.float32,
        torch.Size([1, 2]),
        range(3),
        int,
        len,
        by_codec,
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_any_picklable_structure(batch):
    assert_survives(batch)


def test_objects_with_a_state_of_their_own():
    slotted = Slotted()
    slotted.value = torch.ones(2)
    assert torch.equal(by_codec(slotted).value, torch.ones(2))
    ordered = by_codec(collections.OrderedDict(b=torch.ones(1), a=2))
    assert (type(ordered), list(ordered)) == (collections.OrderedDict, ["b", "a"])
    counted = by_codec(collections.defaultdict(list, a=[1]))
    assert counted["new"] == []


def test_a_structure_that_holds_itself():
    batch: list[Any] = [torch.ones(2)]
    batch.append(batch)
    found = by_codec(batch)
    assert found[1] is found


nested = st.recursive(
    st.one_of(
        st.none(), st.text(), st.binary(max_size=2000), st.integers(), st.floats(allow_nan=False), st.booleans(),
        st.integers(0, 3000).map(lambda count: np.arange(count)),
        st.integers(0, 3000).map(lambda count: torch.arange(count)),
    ),
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(st.text(), inner), st.tuples(inner, inner).map(lambda two: Pair(*two))
    ),
    max_leaves=8,
)  # fmt: skip


@given(nested)
@tries(100)
def test_nested_structures(batch):
    assert_survives(batch)


def test_what_cannot_be_pickled_raises_what_pickle_raises():
    with pytest.raises((TypeError, AttributeError, pickle.PicklingError)):
        encode_batch([torch.ones(2), lambda: 1])
    with pytest.raises(TypeError, match="generator"):
        encode_batch(each for each in [1])


# --- the trainer's __main__ ---


@pytest.fixture
def main_module(monkeypatch):
    """A __main__ as a worker has it: empty, while classes say that they come from it."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


class Own:
    """Pretends to be defined by the trainer's script."""

    class Inner(NamedTuple):
        value: Any


Own.__module__ = Own.Inner.__module__ = "__main__"


def own_function() -> None:
    pass


own_function.__module__ = "__main__"


def test_what_main_defines_is_found_by_name_where_it_is_read(main_module):
    encoded = encode_batch([Own.Inner(torch.ones(2)), Own, own_function])
    payload = (ctypes.c_ubyte * encoded.payload_bytes)()
    encoded.write(payload)
    with pytest.raises(RemoteError, match=r"an instance of Own\.Inner, which __main__ does not define"):
        BatchReader().read(payload)
    main_module.Own, main_module.own_function = Own, own_function
    found = BatchReader().read(payload)
    assert type(found[0]) is Own.Inner
    assert found[1:] == [Own, own_function]


# --- writing ---


def test_nothing_is_written_beyond_the_payload():
    encoded = encode_batch({"a": torch.arange(10), "b": np.arange(1000)})
    target = (ctypes.c_ubyte * (encoded.payload_bytes + 64))(*[0x5A] * (encoded.payload_bytes + 64))
    encoded.write(target)
    assert bytes(target[encoded.payload_bytes :]) == b"\x5a" * 64
    assert encoded.meta_text == bytes(target[: len(encoded.meta_text)])


def test_an_encoded_batch_keeps_what_it_will_copy():
    def make():
        return encode_batch([torch.full((1000,), 7.0), np.full(1000, 7.0), Sample(torch.full((1000,), 7.0), "x")])

    encoded = make()
    # Would take the place of anything that was let go.
    spoilers = [torch.zeros(1000) for _ in range(20)] + [np.zeros(1000) for _ in range(20)]
    payload = (ctypes.c_ubyte * encoded.payload_bytes)()
    encoded.write(payload)
    tensor, array, sample = BatchReader().read(payload)
    assert tensor.tolist() == array.tolist() == sample.image.tolist() == [7.0] * 1000
    del spoilers
