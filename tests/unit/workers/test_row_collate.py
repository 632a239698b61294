"""Batches filled by rows are default_collate's, to the last bit; what cannot be so is a Deviation."""

from __future__ import annotations

import collections
import ctypes
import enum
import warnings
from typing import Any, NamedTuple

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch.utils.data import default_collate
from torchvision import tv_tensors

from prefetchd.wire.slot_layout import DTYPES
from prefetchd.workers.row_collate import collates_otherwise, plan_rows
from prefetchd.workers.row_leaves import Deviation
from tests.budgets import tries
from tests.unit.workers.comparing import by_rows, differences

TORCH_DTYPES = [getattr(torch, name) for name in DTYPES]
NUMPY_DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]
SCALARS = [np.bool_, np.uint8, np.int8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.longlong]
SCALARS += [np.float16, np.float32, np.float64, np.complex64, np.complex128]


class Pair(NamedTuple):
    left: Any
    right: Any


Point = collections.namedtuple("Point", "x y z")


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Random bytes as `dtype`; of bool, random truths."""
    count = int(np.prod(shape))
    bytes_ = np.random.default_rng(seed).integers(0, 256, count * dtype.itemsize, dtype=np.uint8)
    if dtype is torch.bool:
        bytes_ %= 2
    return torch.from_numpy(bytes_).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def assert_as_default_collate(samples: list[Any], rows: int | None = None, first: Any = None) -> None:
    assert differences(by_rows(samples, rows, first), default_collate(samples)) == []


# --- leaves ---


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 3), (0,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_tensors_of_every_dtype_and_shape(dtype, shape):
    assert_as_default_collate([(tensor_of(dtype, shape, seed), seed) for seed in range(5)])


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,), (2, 0, 3)], ids=str)
@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
def test_arrays_of_every_dtype_and_shape(dtype, shape):
    def array(seed: int) -> np.ndarray:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        noise = np.random.default_rng(seed).integers(0, 2 if dtype == "?" else 256, size, dtype=np.uint8)
        return noise.view(dtype).reshape(shape)

    assert_as_default_collate([{"array": array(seed), "seed": seed} for seed in range(4)])


@pytest.mark.parametrize("kind", SCALARS, ids=lambda kind: kind.__name__)
def test_numpy_scalars(kind):
    assert_as_default_collate([kind(value) for value in (1, 0, 1, 100)])


@pytest.mark.parametrize(
    "numbers",
    [
        [1, -5, 2**63 - 1, -(2**63)],
        [0.1, float("inf"), float("-inf"), -0.0, 5e-324, 1.7e308],
        [float("nan"), 1.0],
        [True, False, False],
    ],
    ids=["int", "float", "nan", "bool"],
)
def test_python_numbers(numbers):
    assert_as_default_collate(numbers)


IMAGE = torch.arange(24.0).reshape(2, 4, 3)
NOT_CONTIGUOUS = {
    "permuted": lambda k: (IMAGE + k).permute(2, 0, 1),
    "strided": lambda k: torch.arange(k, k + 20)[::3],
    "expanded": lambda k: torch.tensor([k]).expand(5),
    "offset": lambda k: torch.arange(k, k + 20)[7:],
    "transposed array": lambda k: np.arange(k, k + 6.0).reshape(2, 3).T,
    "Fortran array": lambda k: np.asfortranarray(np.arange(k, k + 6).reshape(2, 3)),
    "strided array": lambda k: np.arange(k, k + 20)[::3],
    "broadcast array": lambda k: np.broadcast_to(np.float32([k]), (3, 4)).view(),
    "imaginary part": lambda k: torch.tensor([1 + 2j, 3 + k * 1j]).imag,
    "conjugate": lambda k: torch.tensor([1 + 2j, 3 + k * 1j]).conj(),
    "negated view": lambda k: torch.tensor([1 + 2j, 3 + k * 1j]).conj().imag,
    "a parameter without grad": lambda k: torch.nn.Parameter(torch.arange(k, k + 3.0), requires_grad=False),
    "no memory behind it": lambda k: torch._efficientzerotensor((3,)) if k % 2 else torch.full((3,), float(k)),
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("make", NOT_CONTIGUOUS.values(), ids=NOT_CONTIGUOUS)
def test_leaves_that_are_not_contiguous(make):
    samples = [(make(k), k) for k in range(5)]
    assert_as_default_collate(samples)
    assert_as_default_collate(samples[1:], first=samples[0])


@pytest.mark.parametrize("dtype", [each for each in TORCH_DTYPES if not each.is_complex], ids=str)
@pytest.mark.parametrize("kind", [torch.Tensor, tv_tensors.Image], ids=["tensor", "picture"])
def test_pictures_whose_planes_are_interleaved(dtype, kind):
    pictures = [
        (torch.arange(k, k + 7 * 6 * 3) % 251).to(dtype).view(7, 6, 3).permute(2, 0, 1).as_subclass(kind)
        for k in range(4)
    ]
    for cut in (lambda each: each, lambda each: each[:, 2:5, 1:5], lambda each: each[:1].expand(3, 7, 6)):
        assert_as_default_collate([(cut(each), k) for k, each in enumerate(pictures)])


def test_each_bit_of_a_nan_is_kept():
    bits = torch.tensor([[0x7FC01234, 0x7F800001], [-1, 0x3F800000]], dtype=torch.int32)
    assert_as_default_collate([bits.view(torch.float32).t() for _ in range(2)])


def test_a_tensor_whose_memory_is_elsewhere():
    """Such as those of lazily decoded images: asked for their address they say 0."""
    assert_as_default_collate([Wrapped(torch.arange(k, k + 4.0)) for k in range(3)])


class Wrapped(torch.Tensor):
    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        bare = torch.utils._pytree.tree_map(lambda value: value.inner if type(value) is Wrapped else value, args)
        return func(*bare, **(kwargs or {}))


# --- structures ---


@pytest.mark.parametrize(
    "make",
    [
        lambda k: (k, k + 0.5, k % 2 == 0),
        lambda k: [torch.tensor(k), np.float32(k)],
        lambda k: Pair(torch.tensor([k]), (k,)),
        lambda k: Point(k, {"inner": np.arange(k, k + 3)}, [k, (k, k)]),
        lambda k: {"b": k, "a": torch.ones(2) * k, 3: (k, {"deep": Pair(k, [float(k)])}), ("t", 1): k},
        lambda k: ((), [], {}, k),
        lambda k: {"same": (tensor := torch.tensor([k])), "again": tensor, "a view": tensor[:0]},
    ],
)
def test_structures_of_tuples_lists_namedtuples_and_dicts(make):
    assert_as_default_collate([make(k) for k in range(3)])
    assert_as_default_collate([make(k) for k in range(7, 9)], rows=5, first=make(0))


def leaves() -> st.SearchStrategy[Any]:
    """Functions from a seed to a leaf; those of one function fit together."""
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    tensors = st.builds(
        lambda dtype, shape: lambda seed: tensor_of(dtype, shape, seed), st.sampled_from(TORCH_DTYPES), shapes
    )
    arrays = st.builds(
        lambda dtype, shape: lambda seed: np.full(shape, seed % 2).astype(dtype), st.sampled_from(NUMPY_DTYPES), shapes
    )
    scalars = st.sampled_from(SCALARS).map(lambda kind: lambda seed: kind(seed % 2))
    numbers = st.sampled_from([int, float, bool]).map(lambda kind: lambda seed: kind(seed))
    return st.one_of(tensors, arrays, scalars, numbers)


def structures() -> st.SearchStrategy[Any]:
    """Functions from a seed to a sample."""

    def around(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        parts = st.lists(inner, max_size=4)
        return st.one_of(
            parts.map(lambda makes: lambda seed: tuple(make(seed) for make in makes)),
            parts.map(lambda makes: lambda seed: [make(seed + 1) for make in makes]),
            st.tuples(inner, inner).map(lambda makes: lambda seed: Pair(makes[0](seed), makes[1](seed))),
            st.dictionaries(st.one_of(st.text(max_size=2), st.integers()), inner, max_size=3).map(
                lambda makes: lambda seed: {key: make(seed) for key, make in makes.items()}
            ),
        )

    return st.recursive(leaves(), around, max_leaves=6)


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@given(structures(), st.integers(1, 6), st.integers(0, 3))
@tries(150)
def test_any_structure(make, rows, missing):
    """Full batches and short ones, whatever the stream's first sample held."""
    samples = [make(seed) for seed in range(10, 10 + max(1, rows - missing))]
    if "tensor(" not in repr(default_collate(samples)):
        with pytest.raises(Deviation, match="without tensors"):
            plan_rows(samples[0], rows)
    else:
        assert_as_default_collate(samples, rows, first=make(3))


def test_every_row_lies_where_its_number_says():
    """Rows are written in any order, and by several workers that each looked at a sample of their own."""
    samples = [(torch.full((2, 3), k), k) for k in range(6)]
    plan, layout = plan_rows(samples[0], 6)
    payload = (ctypes.c_ubyte * layout.meta.payload_bytes)()
    for worker in range(2):
        own, same = plan_rows(samples[worker + 2], 6)
        assert (own.signature, same) == (plan.signature, layout)
        write = own.writer(layout, payload)
        for row in (4, 0, 2) if worker else (5, 1, 3):
            write(row, samples[row])
    tensors, numbers = default_collate(samples)
    for entry, expected in zip(layout.meta.storages, (tensors, numbers)):
        found = bytes(payload[entry.offset : entry.offset + entry.storage_bytes])
        assert found == expected.numpy().tobytes()


# --- what deviates ---


class Special(torch.Tensor):
    pass


class Color(enum.IntEnum):
    RED = 1


class Grown(dict):
    pass


NEVER_BY_ROWS = {
    "a string": "cat",
    "bytes": b"cat",
    "None": None,
    "a complex": 1j,
    "an enum": Color.RED,
    "nothing": (),
    "an OrderedDict": collections.OrderedDict(a=1),
    "a dict of a kind of its own": Grown(a=1),
    "a list of a kind of its own": collections.UserList([1]),
    "a string beside a number": (1, "cat"),
    "a tensor of a kind of its own": torch.ones(2).as_subclass(Special),
    "a tensor that requires grad": torch.ones(2, requires_grad=True),
    "a sparse tensor": torch.eye(2).to_sparse(),
    "a tensor on another device": torch.ones(2, device="meta"),
    "an array with negative strides": np.arange(3)[::-1],
    "an array of objects": np.array([None, 1]),
    "an array of strings": np.array(["a"]),
    "an array of dates": np.array(["2024-01-01"], dtype="M8[D]"),
    "an array in the other byte order": np.arange(3).astype(">i4"),
    "a matrix": np.ma.masked_array([1, 2]),
    "a time span": np.timedelta64(3, "s"),
    "a long double": np.longdouble(1),
    "an int that does not fit": 2**63,
}


@pytest.mark.parametrize("sample", NEVER_BY_ROWS.values(), ids=NEVER_BY_ROWS)
def test_what_cannot_be_filled_by_rows_is_refused(sample):
    """By a Deviation, or by default_collate itself."""
    with pytest.raises((Deviation, TypeError, ValueError, RuntimeError)) as caught:
        plan_rows(sample, 4)
    if caught.type is not Deviation:
        with pytest.raises(caught.type):
            default_collate([sample])


ODD_ONES = {
    "dtype": (torch.ones(3), torch.ones(3, dtype=torch.float64)),
    "shape": (torch.ones(3), torch.ones(4)),
    "dimensions": (torch.ones(3), torch.ones(3, 1)),
    "same size, other shape": (torch.ones(2, 3), torch.ones(3, 2)),
    "requires_grad": (torch.ones(3), torch.ones(3, requires_grad=True)),
    "subclass": (torch.ones(3), torch.ones(3).as_subclass(Special)),
    "parameter": (torch.ones(3), torch.nn.Parameter(torch.ones(3), requires_grad=False)),
    "sparse": (torch.eye(3), torch.eye(3).to_sparse()),
    "device": (torch.ones(3), torch.ones(3, device="meta")),
    "tensor for number": (1.0, torch.tensor(1.0)),
    "number for tensor": (torch.tensor(1.0), 1.0),
    "array for tensor": (torch.ones(3), np.ones(3, np.float32)),
    "tensor for array": (np.ones(3, np.float32), torch.ones(3)),
    "array's dtype": (np.ones(3), np.ones(3, np.float32)),
    "array's shape": (np.ones((2, 3)), np.ones((3, 2))),
    "array's byte order": (np.ones(3, "<f4"), np.ones(3, ">f4")),
    "array's strides": (np.ones(3), np.ones(3)[::-1]),
    "array that is packed in a record": (np.ones(3, "f4"), np.zeros(3, "u1,f4")["f1"]),
    "array's kind": (np.ones((2, 2)), np.ma.masked_array(np.ones((2, 2)))),
    "scalar for array": (np.ones(()), np.float64(1)),
    "scalar's dtype": (np.float32(1), np.float64(1)),
    "numpy for Python number": (1.0, np.float64(1)),
    "Python for numpy number": (np.float64(1), 1.0),
    "float for int": (1, 1.5),
    "int for float": (1.5, 1),
    "bool for int": (1, True),
    "int for bool": (True, 1),
    "int too large": (1, 2**63),
    "int too small": (1, -(2**63) - 1),
    "enum for int": (1, Color.RED),
    "string for int": (1, "one"),
    "None for tensor": (torch.ones(1), None),
    "shorter tuple": ((1, 2), (1,)),
    "longer list": ([1], [1, 2]),
    "list for tuple": ((1, 2), [1, 2]),
    "tuple for namedtuple": (Pair(1, 2), (1, 2)),
    "other namedtuple": (Point(1, 2, 3), (1, 2, 3)),
    "missing key": ({"a": 1, "b": 2}, {"a": 1}),
    "further key": ({"a": 1}, {"a": 1, "b": 2}),
    "other key": ({"a": 1}, {"b": 1}),
    "other order of keys": ({"a": 1, "b": 2.0}, {"b": 2.0, "a": 1}),
    "other mapping": ({"a": 1}, collections.OrderedDict(a=1)),
    "deep inside": ({"a": [(1, torch.ones(2))]}, {"a": [(1, torch.ones(3))]}),
    "number for dict": ({"a": 1}, 1),
    "dict for number": (1, {"a": 1}),
}


@pytest.mark.parametrize("pair", ODD_ONES.values(), ids=ODD_ONES)
def test_a_sample_that_is_not_like_the_first_deviates(pair):
    first, odd = pair
    with pytest.raises(Deviation):
        by_rows([first, odd])


def test_a_sample_that_cannot_even_be_asked_deviates():
    """A nested tensor has no shape, and a class of the user's may raise whatever it likes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # once a process, torch says that nested tensors are a prototype
        nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    with pytest.raises(Deviation):
        by_rows([torch.ones(2), nested])
    with pytest.raises(Deviation):
        by_rows([{"a": 1}, Unwilling()])


class Unwilling:
    @property
    def __class__(self):
        raise RuntimeError("don't ask")


@given(st.sampled_from(list(ODD_ONES)), st.booleans(), st.integers(0, 3))
@tries(60)
def test_odd_ones_are_never_written_wrong(name, swapped, place):
    """Whichever of the two the stream began with: the same batch as default_collate makes, or a Deviation."""
    usual, odd = ODD_ONES[name][::-1] if swapped else ODD_ONES[name]
    samples = [usual] * 4
    samples[place] = odd
    try:
        filled = by_rows(samples, first=usual)
    except (Deviation, TypeError, ValueError, RuntimeError):
        return
    assert differences(filled, default_collate(samples)) == []


def test_signatures_tell_apart_what_must_not_share_a_layout():
    def signature(sample):
        try:
            return plan_rows(sample, 2)[0].signature
        except (Deviation, RuntimeError, TypeError, ValueError):
            return None

    for name, (first, odd) in ODD_ONES.items():
        assert signature(first) is not None, name
        assert signature(first) != signature(odd), name


def test_the_layout_is_that_of_a_full_batch():
    _, layout = plan_rows((torch.ones(2, 3), 1), 16)
    assert layout.rows == 16
    assert [view.shape for view in layout.meta.views] == [(16, 2, 3), (16,)]
    assert [view.stride for view in layout.meta.views] == [(6, 3, 1), (1,)]
    assert [entry.storage_bytes for entry in layout.meta.storages] == [16 * 24, 16 * 8]


class Own:
    pass


@pytest.mark.parametrize(
    ("kind", "otherwise"),
    [
        (torch.Tensor, True),
        ((np.bool_, np.number, np.object_), True),
        (collections.abc.Mapping, True),
        (float, True),
        (Own, False),
        (torch.nn.Parameter, False),
    ],
)
def test_a_function_of_the_user_s_for_plain_values_makes_batches_as_it_likes(kind, otherwise):
    assert collates_otherwise({kind: None}) is otherwise
