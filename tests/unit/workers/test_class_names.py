"""How a worker names the classes of what it pickles."""

from __future__ import annotations

import collections
import io
import pickle

import pytest

from prefetchd.workers import class_names
from prefetchd.workers.class_names import ClassNamingPickler


class Holder:
    Batch = collections.namedtuple("Batch", ["data"])

    class Inner:
        pass


def made():
    class Made:
        pass

    return Made


# Before former objects are left aside, as a trainer's are when workers are forked.
Made = made()


@pytest.fixture
def in_a_fork(monkeypatch):
    monkeypatch.setattr(class_names, "_is_fork", True)
    monkeypatch.setattr(class_names, "_known", type(class_names._known)())


def name_of(cls):
    return ClassNamingPickler(io.BytesIO()).persistent_id(cls)


@pytest.mark.usefixtures("in_a_fork")
@pytest.mark.parametrize("cls", [Holder, Holder.Inner, collections.OrderedDict, int, type(None), type(...)])
def test_what_pickle_finds_is_left_to_pickle(cls):
    assert name_of(cls) is None


@pytest.mark.usefixtures("in_a_fork")
@pytest.mark.parametrize("cls", [Holder.Batch, Made])
def test_a_class_of_the_trainer_s_that_pickle_does_not_find_is_named_by_its_address(cls):
    assert name_of(cls) == ("class", __name__, cls.__qualname__, id(cls))
    assert name_of(cls) == name_of(cls)


@pytest.mark.usefixtures("in_a_fork")
def test_a_class_that_the_worker_has_made_is_an_error_of_pickle_s():
    with pytest.raises((AttributeError, pickle.PicklingError), match=r"made\.<locals>\.Made"):
        ClassNamingPickler(io.BytesIO()).dump(made()())


@pytest.mark.usefixtures("in_a_fork")
def test_a_class_of_the_script_s_is_named_by_its_address_where_its_name_leads_elsewhere(monkeypatch):
    monkeypatch.setattr(Made, "__module__", "__main__")
    assert name_of(Made) == ("class", "__main__", Made.__qualname__, id(Made))


def test_an_executed_worker_names_what_the_script_defines_by_name_alone(monkeypatch):
    monkeypatch.setattr(class_names, "_known", type(class_names._known)())
    monkeypatch.setattr(Made, "__module__", "__main__")
    assert name_of(Made) == ("main", Made.__qualname__)
    assert name_of(Holder.Batch) is None
