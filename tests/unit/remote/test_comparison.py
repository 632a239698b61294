"""What must be the same on two machines, and how it is said when it is not."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from prefetchd import __version__
from prefetchd.remote import comparison
from prefetchd.remote.comparison import COMPARED_PACKAGES, MOST_NAMED, differences, processor_here, versions_here


def test_versions_are_those_of_the_interpreter_and_of_what_decides_bytes():
    found = versions_here()
    assert found["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert found["machine"] == platform.machine()
    assert found["prefetchd"] == __version__
    assert found["torch"] == importlib.metadata.version("torch")
    assert set(COMPARED_PACKAGES) < set(found)
    assert all(type(each) is str for each in found.values())


def test_a_package_that_is_not_there_is_a_version_too(monkeypatch):
    monkeypatch.setattr(comparison, "COMPARED_PACKAGES", ("prefetchd-is-not-called-so",))
    assert versions_here()["prefetchd-is-not-called-so"] == "not installed"


def test_a_machine_does_not_differ_from_itself():
    assert differences(versions_here(), versions_here(), "node") == ""


def test_what_differs_is_named_with_both_values_and_the_node():
    here, there = {"torch": "2.1", "numpy": "2.0"}, {"torch": "2.2", "numpy": "2.0"}
    assert differences(here, there, "n1") == "torch: 2.1 here, 2.2 on n1"


def test_what_one_machine_lacks_differs():
    assert differences({"a": "1"}, {}, "n1") == "a: 1 here, none on n1"
    assert differences({}, {"a": "1"}, "n1") == "a: none here, 1 on n1"


def test_much_that_differs_is_counted_from_some_point_on():
    here = {str(number): "a" for number in range(MOST_NAMED + 2)}
    text = differences(here, dict.fromkeys(here, "b"), "n1")
    assert text.count(" here, ") == MOST_NAMED
    assert text.endswith(" and 2 more")
    assert "more" not in differences(dict(list(here.items())[:MOST_NAMED]), {}, "n1")


def test_a_processor_has_a_name_of_one_line():
    assert processor_here()
    assert processor_here() == processor_here().strip()
    assert "\n" not in processor_here()


def test_a_machine_that_does_not_name_its_processor_says_of_what_kind_it_is(monkeypatch):
    def missing(_path):
        raise FileNotFoundError

    monkeypatch.setattr("builtins.open", missing)
    assert processor_here() == platform.machine()
