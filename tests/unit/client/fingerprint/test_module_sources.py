"""Which modules a fingerprint reads, and what it reads of them."""

from __future__ import annotations

import importlib.util
import os
import py_compile

import prefetchd_client
import prefetchd_demo
import pytest
from prefetchd_client.fingerprint import module_sources
from prefetchd_client.fingerprint.module_sources import Origin, module_origin

import prefetchd

OLD = "import json\n"
NEW = "import glob\n"
"""As long as the old one."""


def imports_of(path) -> tuple:
    module_sources._files.clear()
    return module_sources._read(os.fspath(path)).imports


@pytest.fixture
def source(tmp_path):
    """A source whose bytecode is kept beside it."""
    path = tmp_path / "module.py"
    path.write_text(OLD)
    py_compile.compile(os.fspath(path), doraise=True, invalidation_mode=py_compile.PycInvalidationMode.TIMESTAMP)
    return path


def compiled(source) -> str:
    return importlib.util.cache_from_source(os.fspath(source))


def test_what_python_has_compiled_is_not_compiled_again(source, monkeypatch):
    monkeypatch.setattr(module_sources, "compile", None, raising=False)
    assert imports_of(source) == ((0, "json", ()),)


def test_bytecode_of_another_time_counts_for_nothing(source):
    before = source.stat().st_mtime
    source.write_text(NEW)
    os.utime(source, (before + 2, before + 2))
    assert imports_of(source) == ((0, "glob", ()),)


@pytest.mark.parametrize("spoil", ["empty", "cut", "garbage", "another python's", "hashed", "no code", "gone"])
def test_bytecode_that_is_of_no_use_is_left_alone(source, spoil):
    with open(compiled(source), "rb") as file:
        data = file.read()
    if spoil == "gone":
        os.unlink(compiled(source))
    else:
        told = {
            "empty": b"",
            "cut": data[: len(data) // 2],
            "garbage": data[:16] + b"\xff" * 64,
            "another python's": b"\0" * 4 + data[4:],
            "hashed": data[:4] + b"\1\0\0\0" + data[8:],
            "no code": data[:16] + b"N",
        }[spoil]
        with open(compiled(source), "wb") as file:
            file.write(told)
    assert imports_of(source) == ((0, "json", ()),)


def test_our_own_packages_count_by_their_version_wherever_they_lie():
    assert module_origin(prefetchd) is Origin.INSTALLED
    assert module_origin(prefetchd_client) is Origin.INSTALLED
    assert module_sources.package_versions(prefetchd_client) == (("prefetchd_client", prefetchd.__version__),)
    assert module_origin(prefetchd_demo) is Origin.USER, "it stands for a user's script"
