"""Default names: the same in the next run, and those of loaders that are gone are used again."""

from __future__ import annotations

import sys
import types

import pytest
from prefetchd_client.loader import stream_names
from prefetchd_client.loader.stream_names import Ordinal, default_stream_name

from prefetchd.wire.stream_spec import StreamSpec


@pytest.fixture
def script(monkeypatch):
    """A process that runs /home/me/project/train.py and has made no loader yet."""
    main = types.ModuleType("__main__")
    main.__file__ = "/home/me/project/train.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(stream_names, "_taken", set())
    return main


def test_a_default_name_is_the_script_the_ordinal_and_the_rank(script, monkeypatch):
    assert default_stream_name(0) == "project/train.py:0"
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert default_stream_name(2) == "project/train.py:2@3"
    monkeypatch.setenv("RANK", "0")
    del script.__file__
    assert default_stream_name(3) == "interactive:3"


@pytest.mark.parametrize("path", [f"/home/{'d' * 210}/train.py", "/home/a\tb/train.py", "/home/a\udcff/train.py"])
def test_a_script_whose_path_cannot_be_a_name_has_one_of_its_own(script, path):
    """Found as an error about a name that nobody gave."""
    script.__file__ = path
    name = default_stream_name(12345)
    assert StreamSpec("0" * 32, 0, "sequential", 5, 2, name=f"{name}@99999").name.isprintable()
    assert "/train.py~" in name
    script.__file__ = path.replace("/home/", "/home/x")
    assert default_stream_name(12345) != name


def test_an_ordinal_that_is_given_back_is_the_next_one(script):
    first, second, third = Ordinal(), Ordinal(), Ordinal()
    assert [each.number for each in (first, second, third)] == [0, 1, 2]
    second.give_back()
    assert Ordinal().number == 1
    second.give_back()
    del first
    again = [Ordinal(), Ordinal()]
    assert [each.number for each in again] == [0, 1], "giving back twice takes it from nobody"
    del third


def test_one_that_nobody_has_any_more_is_given_back(script):
    numbers = set()
    loader = None
    for _ in range(14):
        loader = Ordinal()
        numbers.add(loader.number)
    del loader
    assert numbers == {0, 1}
