"""Paths say for people where an object is, and live state near a program is found by them."""

from __future__ import annotations

import functools
import multiprocessing as mp
import types

import pytest
from prefetchd_client.fingerprint.object_paths import near_live_state, path_to

VALUE = mp.Value("i", 0)


def reads_a_global(samples):
    return VALUE.value, samples


class Holder:
    __slots__ = ("slot",)

    def __init__(self, slot):
        self.slot = slot


class WithClassAttribute:
    epoch = VALUE

    def method(self, samples):
        return samples


def closure():
    return lambda: VALUE


def test_paths_lead_through_attributes_and_containers():
    target = object()
    holder = types.SimpleNamespace(inner=[0, {"key": Holder((target,))}])
    assert path_to({"dataset": holder}, target) == "dataset.inner[1]['key'].slot[0]"


def test_paths_lead_through_functions():
    target = object()
    assert path_to({"collate_fn": functools.partial(print, target)}, target) == "collate_fn.args[0]"
    assert path_to({"collate_fn": (lambda held: lambda: held)(target)}, target) == "collate_fn.held"


def test_unknown_object_is_somewhere_in_the_parts():
    assert path_to({"dataset": 1, "collate_fn": None}, object()) == "dataset"


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (types.SimpleNamespace(v=VALUE), "dataset.v is a shared value"),
        (reads_a_global, "dataset (global VALUE) is a shared value"),
        (WithClassAttribute(), "dataset.epoch is a shared value"),
        (WithClassAttribute().method, "dataset.__self__.epoch is a shared value"),
        (closure(), "dataset (global VALUE) is a shared value"),
        (types.SimpleNamespace(v=3, f=print), ""),
    ],
)
def test_live_state_near_a_program_is_named(part, text):
    assert near_live_state({"dataset": part}) == text


def test_cycles_end():
    one = types.SimpleNamespace()
    one.self = one
    assert near_live_state({"dataset": one}) == ""
