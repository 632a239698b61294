"""Classes as workers name them are found again, or an error says which and why not."""

from __future__ import annotations

import gc
import sys
import types

import pytest
from prefetchd_client.batches.class_lookup import find_named

from prefetchd.wire.errors import ProtocolError, RemoteError


def made(value):
    class Made:
        content = value

    return Made


def named(cls, address=None):
    return ("class", cls.__module__, cls.__qualname__, id(cls) if address is None else address)


def test_what_main_defines_is_found_by_its_qualified_name(monkeypatch):
    main = types.ModuleType("__main__")
    main.Outer = type("Outer", (), {"Inner": type("Inner", (), {})})
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert find_named(("main", "Outer.Inner")) is main.Outer.Inner
    for name in ("Missing", "Outer.Missing", "function.<locals>.Inner"):
        with pytest.raises(RemoteError, match="define it at the top level"):
            find_named(("main", name))


def test_of_several_classes_of_one_name_it_is_the_one_at_that_address():
    one, other = made(1), made(2)
    assert find_named(named(one)) is one
    assert find_named(named(other)) is other
    assert find_named(named(one)) is one


def test_at_another_address_it_is_the_only_one_of_that_name():
    class Single:
        pass

    assert find_named(named(Single, address=1)) is Single


def test_of_several_at_other_addresses_none_is_taken():
    kept = [made(1), made(2)]
    with pytest.raises(RemoteError, match=r"made\.<locals>\.Made, of which \d+ are here and none is the worker's"):
        find_named(named(kept[0], address=1))


def test_one_that_is_gone_is_told():
    def vanishing():
        class Gone:
            pass

        return named(Gone)

    name = vanishing()
    gc.collect()
    with pytest.raises(RemoteError, match=r"Gone, of which 0 are here"):
        find_named(name)


def test_another_kind_is_refused():
    with pytest.raises(ProtocolError, match="allowed: main, class"):
        find_named(("module", "x"))
