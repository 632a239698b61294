"""record() beside dataclasses.dataclass(frozen=True, slots=True): who uses its classes finds no difference."""

import copy
import dataclasses
import pickle

import pytest

from prefetchd.wire.records import record


class Base:
    number = 7
    __slots__ = ()


@record
class Ours(Base):
    """Three fields."""

    first: int
    second: str = "two"
    third: tuple[int, ...] = ()

    def method(self) -> int:
        return self.first + self.number


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs(Base):
    """Three fields."""

    first: int
    second: str = "two"
    third: tuple[int, ...] = ()


@record
class Empty(Base):
    """None."""


def test_it_is_made_as_a_dataclass_is():
    for made in (Ours(1), Ours(1, "two"), Ours(first=1, third=()), dataclasses.replace(Ours(2), first=1)):
        assert made == Ours(1)
        assert repr(made) == repr(Theirs(1)).replace("Theirs", "Ours")
        assert hash(made) == hash(Theirs(1))
    assert [each.name for each in dataclasses.fields(Ours)] == [each.name for each in dataclasses.fields(Theirs)]
    assert Ours.__match_args__ == Theirs.__match_args__
    assert Ours.__doc__ == Theirs.__doc__
    assert Ours(1).method() == 8
    assert dataclasses.astuple(Ours(1)) == dataclasses.astuple(Theirs(1))


@pytest.mark.parametrize(
    ("arguments", "names"), [((), {}), ((1, 2, 3, 4), {}), ((1,), {"fourth": 4}), ((1,), {"first": 1})]
)
def test_what_a_dataclass_does_not_take_it_does_not(arguments, names):
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            kind(*arguments, **names)


def test_nothing_of_it_can_be_changed():
    made = Ours(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'first'"):
        made.first = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.another = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'first'"):
        del made.first
    assert not hasattr(made, "__dict__")


def test_only_one_of_the_same_class_and_values_is_equal():
    assert Ours(1) != Ours(2)
    assert Ours(1) != Theirs(1)
    assert Ours(1, "a") != Ours(1, "b")
    assert Empty() == Empty()
    assert {Empty(), Empty()} == {Empty()}
    assert repr(Empty()) == "Empty()"


def test_copies_and_pickles_are_equal():
    made = Ours(1, "a", (2,))
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
