"""What the comparison must see: it would be no use if it found everything equal."""

from __future__ import annotations

import collections
import copy
import math

import numpy as np
import pytest
import torch

from prefetchd.wire.errors import StreamFailedError
from tests.compatibility import material as m
from tests.compatibility.case import Case, Raised, Separate, loading
from tests.compatibility.comparing import differences
from tests.compatibility.running import Verdict, bare_errors

ONE = torch.ones(3)
FOUR = torch.ones(4)
LIST = [1]


def named(name: str) -> ImportError:
    return ImportError("cannot load", name=name)


def tensor_with_attribute(value: int) -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.extra = value
    return tensor


def read_only() -> np.ndarray:
    array = np.ones(2)
    array.flags.writeable = False
    return array


def jagged(*parts: torch.Tensor) -> torch.Tensor:
    return torch.nested.nested_tensor(list(parts), layout=torch.jagged)


DIFFERENT = {
    "type": (1, 1.0),
    "bool and number": (True, 1),
    "value": ([1, 2], [1, 3]),
    "length": ([1, 2], [1, 2, 3]),
    "tuple and list": ((1,), [1]),
    "namedtuple": (m.Pair(1, 2), m.PlainPair(1, 2)),
    "key order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "dict type": ({"a": 1}, collections.OrderedDict(a=1)),
    "negative zero": (0.0, -0.0),
    "default factory": (collections.defaultdict(list), collections.defaultdict(int)),
    "tensor value": (torch.tensor([1, 2]), torch.tensor([1, 3])),
    "tensor dtype": (torch.ones(2), torch.ones(2).double()),
    "tensor shape": (torch.ones(2, 1), torch.ones(1, 2)),
    "tensor stride": (torch.ones(2, 3), torch.ones(3, 2).t()),
    "tensor grad": (torch.ones(2), torch.ones(2, requires_grad=True)),
    "tensor class": (torch.ones(2), torch.ones(2).as_subclass(m.Boxes)),
    "tensor attribute": (tensor_with_attribute(1), tensor_with_attribute(2)),
    "parameter": (torch.ones(2), torch.nn.Parameter(torch.ones(2), requires_grad=False)),
    "jagged": (ONE, jagged(ONE)),
    "jagged value": (jagged(ONE), jagged(2 * ONE)),
    "jagged length": (jagged(ONE, FOUR), jagged(FOUR, ONE)),
    "sparse": (torch.ones(2), torch.ones(2).to_sparse()),
    "sparse value": (torch.tensor([0.0, 1]).to_sparse(), torch.tensor([0.0, 2]).to_sparse()),
    "array dtype": (np.ones(2, "<i4"), np.ones(2, ">i4")),
    "array order": (np.ones((2, 3)), np.asfortranarray(np.ones((2, 3)))),
    "array flag": (np.ones(2), read_only()),
    "array of objects": (np.array([None, 1], object), np.array([None, 2], object)),
    "numpy scalar": (np.float32(1), np.float64(1)),
    "attribute": (m.Bag(a=1), m.Bag(a=2)),
    "more attributes": (m.Bag(a=1), m.Bag(a=1, b=2)),
    "slot": (m.Slotted("a", ONE), m.Slotted("b", ONE)),
    "string with an attribute": (m.Words("a"), "a"),
    "enum": (m.Colour.RED, m.Colour.GREEN),
    "class": (m.Bag, m.Pinnable),
    "two names": ([ONE, ONE], [ONE, ONE.clone()]),
    "two names of a list": ([LIST, [1]], [LIST, LIST]),
    "one memory": ([ONE, ONE[1:]], [ONE, torch.ones(2)]),
    "another place in memory": ([FOUR, FOUR[:2]], [FOUR, FOUR[2:]]),
    "error type": (Raised(KeyError("a")), Raised(IndexError("a"))),
    "error text": (Raised(ValueError("a")), Raised(ValueError("b"))),
    "error arguments": (Raised(ValueError("a")), Raised(ValueError("a", 1))),
    "error name": (Raised(named("a")), Raised(named("b"))),
    "error and batch": (Raised(ValueError("a")), ONE),
    "number of batches": (Separate([1, 2]), Separate([1])),
    "order of batches": (Separate([1, 2]), Separate([2, 1])),
}


@pytest.mark.parametrize(("one", "other"), DIFFERENT.values(), ids=DIFFERENT)
def test_differences_are_found_both_ways(one, other):
    assert differences(one, other)
    assert differences(other, one)


@pytest.mark.parametrize(
    "thing",
    [
        [math.nan, {"a": (torch.tensor([math.nan]), np.array([math.nan]))}],
        [ONE, ONE, ONE[1:]],
        m.Bag(a=m.Record("a", ONE), b=[LIST, LIST]),
        {1, 2},
        [torch.empty(0), torch.empty(0)],
        [torch.ones(2).to_sparse(), torch.tensor([1j])],
    ],
    ids=lambda thing: type(thing).__name__,
)
def test_a_copy_is_equal(thing):
    assert differences(thing, copy.deepcopy(thing)) == []


def test_an_entry_excuses_its_own_difference_and_no_other():
    entry = Case("narrow", "batches", 0, "for a reason", "values differ", (), lambda: loading([]))
    assert Verdict(entry, ["values differ"]).unexpected == []
    assert Verdict(entry, ["values differ", ": it crashed"]).unexpected == [": it crashed"]
    assert Verdict(entry, ["values differ here"]).unexpected == ["values differ here"]
    assert "take the reason away" in Verdict(entry, []).unexpected[0]


def test_an_entry_excuses_no_bare_error_that_it_does_not_name():
    """A pattern that is wide would excuse a fault of ours with the difference it was made for."""
    bare, ours = Raised(KeyError("inner")), Raised(StreamFailedError("it failed"))

    def unexpected(difference, theirs, mine):
        case = Case("it", "errors", 2, "a reason", difference, (), lambda: loading([]))
        return Verdict(case, differences(theirs, mine), bare_errors(case, theirs, mine)).unexpected

    (said,) = unexpected(".*", 1, bare)
    assert "a bare KeyError" in said
    (said,) = unexpected(".*", Separate([1, 2]), Separate([1, bare]))
    assert "a bare KeyError" in said
    assert unexpected(".*", 1, ours) == []
    assert unexpected(".*KeyError.*", 1, bare) == []
    assert unexpected(".*", Raised(ValueError("theirs")), bare) == []


def test_an_object_in_two_batches_means_nothing():
    assert differences(Separate([ONE, ONE]), Separate([ONE, ONE.clone()])) == []


def test_the_traceback_must_show_the_user_s_functions():
    from torch.utils.data import DataLoader

    from tests.compatibility.errors import Raising

    try:
        list(DataLoader(Raising(int)))
    except ValueError as raised:
        theirs = raised
    bare = ValueError(*theirs.args)
    assert differences(Raised(theirs), Raised(theirs)) == []
    assert "__getitem__" in differences(Raised(theirs), Raised(bare))[0]


def test_lists_that_are_made_for_the_comparison_alone_are_nobody_s_twins():
    """Else the id of one that is gone would be given to another, with one loader only."""

    def arrays() -> list[np.ndarray]:
        return [np.array([str(index), [index]], dtype=object) for index in range(200)]

    ours = arrays()
    for index in range(0, 200, 3):
        ours[index] = ours[index].copy()
    assert differences(arrays(), ours) == []
