"""The same program has the same fingerprint everywhere; each change that can matter has another."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import importlib
import json
import logging
import marshal
import math
import multiprocessing.sharedctypes
import os
import pathlib
import random
import re
import socket
import subprocess
import sys
import textwrap
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from prefetchd_client.fingerprint import module_sources
from prefetchd_client.fingerprint.walk import ENVIRONMENT, describe, fingerprint

from tests.budgets import tries

REPOSITORY = pathlib.Path(__file__).parents[3]

PROGRAM = '''
"""A training script."""
import collections, dataclasses, enum, functools, logging, pathlib, re, threading
import numpy as np
import torch
from torch.utils.data import Dataset

SCALE = 255.0
UNRELATED = 1
LABELS = {"cat": 0, "dog": 1, "emu": 2}
LOGGER = logging.getLogger("train")


class Mode(enum.Enum):
    TRAIN = "train"
    TEST = "test"


Box = collections.namedtuple("Box", "left top")


@dataclasses.dataclass
class Crop:
    size: int = 32

    def __call__(self, image):
        return image[: self.size, : self.size]


class Compose:
    def __init__(self, *transforms):
        self.transforms = transforms

    def __call__(self, image):
        for transform in self.transforms:
            image = transform(image)
        return image


class Base(Dataset):
    factor = 2

    def __len__(self):
        return len(self.paths)


def times(number):
    def multiply(image):
        """Scales."""
        return [value * number for value in image]

    return multiply


def outer(image, *, gain=1.5):
    def inner(value):
        return value * gain + len(LABELS)

    return [inner(value) for value in image]


def flip(image):
    return image[::-1]


class Images(Base):
    """Images and their labels."""

    known = frozenset({"cat", "dog", "emu"})

    def __init__(self, mode):
        super().__init__()
        self.mode = mode
        self.paths = [f"/data/{number:06d}.jpg" for number in range(3000)]
        self.samples = [(path, number % 3) for number, path in enumerate(self.paths)]
        self.wanted = {"cat", "dog", "emu", ("a", 1)}
        self.mixed = {Mode.TRAIN, Mode.TEST, flip, times(4), None, "cat"}
        self.root = pathlib.Path("/data") / "train"
        self.pattern = re.compile("[0-9]+", re.I)
        self.mean = np.array([0.5, 0.25, 0.125], dtype=np.float32)
        self.weights = torch.arange(6, dtype=torch.float32)
        self.names = np.array(["x", None, ("y", 2)], dtype=object)
        self.box = Box(1, 2)
        self.options = {"first": 1, "second": 2}
        self.crops = collections.OrderedDict(small=Crop(8), large=Crop())
        self.scale = functools.partial(outer, gain=2.5)
        self.transform = Compose(Crop(16), times(3), lambda image: image + SCALE, flip)
        self.random = np.random.default_rng(7)
        self.lock = threading.Lock()
        self.method = self.load
        self.itself = self

    @functools.lru_cache(maxsize=8)
    def load(self, path: str, retries=3):
        """Reads one image."""
        LOGGER.debug("loading")
        if path in {"/dev/null", "/dev/zero", "/dev/full"}:
            return None
        try:
            return self.transform(np.fromfile(path) / SCALE) if retries else 0.25
        except OSError:
            return None

    @property
    def size(self):
        return len(self.samples) * self.factor

    @staticmethod
    def parse(text):
        return int(text, 10)

    def __getitem__(self, index):
        path, label = self.samples[index]
        return self.load(path), self.parse(label)


def collate(rows):
    return torch.stack([image for image, _ in rows]), [label for _, label in rows]


def seed_worker(worker):
    np.random.seed(worker)


def parts():
    return {
        "dataset": Images(Mode.TRAIN),
        "collate_fn": collate,
        "worker_init_fn": seed_worker,
        "generator": torch.Generator().manual_seed(11),
        "batch_size": 32,
    }


def train():
    return sum(range(10))
'''

DATASET, COLLATE = {"dataset"}, {"collate_fn"}


def load(source: str, filename: str = "/somewhere/train.py") -> dict[str, Any]:
    """The namespace of `source` run as a script would be."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, filename, "exec", dont_inherit=True), namespace)
    return namespace


def digests(source: str, filename: str = "/somewhere/train.py") -> dict[str, str]:
    return describe(load(source, filename)["parts"]())


def same(one: object, other: object) -> bool:
    return fingerprint({"value": one}) == fingerprint({"value": other})


@pytest.fixture(scope="module")
def original() -> dict[str, str]:
    return digests(PROGRAM)


# --- fresh processes ------------------------------------------------------------------------------------------

REPORT = """
if __name__ == "__main__":
    import json
    from prefetchd_client.fingerprint.walk import describe, fingerprint
    print(json.dumps([fingerprint(parts()), describe(parts())]))
"""


def run_script(script: pathlib.Path, cwd: pathlib.Path, seed: int, lib: pathlib.Path | None = None) -> Any:
    path = [REPOSITORY, REPOSITORY / "client", *([lib] if lib is not None else [])]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(seed),
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(script)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.timeout(300)  # torch is imported nine times
def test_fresh_processes_agree(tmp_path: pathlib.Path) -> None:
    lib = tmp_path / "lib"
    (lib / "project").mkdir(parents=True)
    (lib / "project" / "__init__.py").write_text("from project import images\n")
    (lib / "project" / "images.py").write_text(
        "from .colours import mix\nNAMES = {'a', 'b', 'c'}\nclass Mixed:\n    def __init__(self):\n"
        "        self.names = {'x', 'y', mix}\n    def __getitem__(self, i):\n        return mix(i), NAMES\n"
    )
    (lib / "project" / "colours.py").write_text("def mix(colour):\n    return colour in {'red', 'green', 'blue'}\n")
    more = "\nimport project\n_parts = parts\ndef parts():\n    return _parts() | {'mixed': project.images.Mixed()}\n"

    def run(number: int) -> Any:
        place = tmp_path / f"place{number}"
        place.mkdir()
        script = place / f"train{number // 3}.py"
        script.write_text(PROGRAM + more + "\n" * number + REPORT)
        return run_script(script, [place, tmp_path, pathlib.Path("/")][number % 3], seed=number * 1000 + 1, lib=lib)

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(run, range(9)))
    assert len(results[0][0]) == 32
    assert all(result == results[0] for result in results)


def test_an_edited_helper_of_a_helper_is_seen_by_the_next_process(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import helper\ndef parts():\n    return {'dataset': helper.Data()}\n" + REPORT)
    (tmp_path / "helper.py").write_text("from deeper import SIZE\nclass Data:\n    pass\n")
    (tmp_path / "deeper.py").write_text("SIZE = 1\n")
    before, _ = run_script(script, tmp_path, seed=1)
    (tmp_path / "deeper.py").write_text("SIZE = 1 + 1\n")
    after, _ = run_script(script, tmp_path, seed=1)
    assert before != after


# --- what must change the fingerprint, and what must not ------------------------------------------------------

CHANGES = {
    "constant in a method": ("else 0.25", "else 0.5", DATASET),
    "constant in a set in a method": ('"/dev/full"', '"/dev/empty"', DATASET),
    "exception that a method catches": ("except OSError", "except ValueError", DATASET),
    "default argument": ("retries=3", "retries=4", DATASET),
    "keyword default": ("gain=1.5", "gain=1.25", DATASET),
    "argument of a partial": ("gain=2.5", "gain=2.25", DATASET),
    "closure value": ("times(3)", "times(5)", DATASET),
    "closure value in a set": ("times(4)", "times(5)", DATASET),
    "code of a nested function": ("value * number", "value + number", DATASET),
    "code of a lambda": ("image + SCALE", "image - SCALE", DATASET),
    "global constant": ("SCALE = 255.0", "SCALE = 256.0", DATASET),
    "type of a global constant": ("SCALE = 255.0", "SCALE = 255", DATASET),
    "global of a nested function": ('"emu": 2', '"emu": 3', DATASET),
    "transform argument": ("Crop(16)", "Crop(17)", DATASET),
    "default of a dataclass": ("size: int = 32", "size: int = 33", DATASET),
    "order of transforms": ("Compose(Crop(16), times(3)", "Compose(times(3), Crop(16)", DATASET),
    "function of a global": ("image[::-1]", "image[::-2]", DATASET),
    "class attribute": ("factor = 2", "factor = 3", DATASET),
    "class attribute, a set": ('known = frozenset({"cat"', 'known = frozenset({"cow"', DATASET),
    "static method": ("int(text, 10)", "int(text, 16)", DATASET),
    "property": ("* self.factor", "+ self.factor", DATASET),
    "base class": ("class Images(Base)", "class Images(Dataset)", DATASET),
    "method of a base class": ("return len(self.paths)", "return len(self.samples)", DATASET),
    "enum member": ("Images(Mode.TRAIN)", "Images(Mode.TEST)", DATASET),
    "enum value": ('TRAIN = "train"', 'TRAIN = "training"', DATASET),
    "element of a list": ("{number:06d}", "{number:07d}", DATASET),
    "element of a set": ('"emu", ("a", 1)', '"eel", ("a", 1)', DATASET),
    "element of a mixed set": ("Mode.TEST, flip", "flip", DATASET),
    "path": ('"train"\n        self.pattern', '"test"\n        self.pattern', DATASET),
    "flags of a pattern": ("re.I)", "re.M)", DATASET),
    "element of an array": ("0.25, 0.125]", "0.25, 0.25]", DATASET),
    "dtype of an array": ("dtype=np.float32", "dtype=np.float64", DATASET),
    "element of an array of objects": ('("y", 2)', '("y", 3)', DATASET),
    "length of a tensor": ("torch.arange(6", "torch.arange(7", DATASET),
    "dtype of a tensor": ("dtype=torch.float32", "dtype=torch.float64", DATASET),
    "namedtuple": ("Box(1, 2)", "Box(1, 3)", DATASET),
    "order of a dict": ('{"first": 1, "second": 2}', '{"second": 2, "first": 1}', DATASET),
    "order of an OrderedDict": ("small=Crop(8), large=Crop()", "large=Crop(), small=Crop(8)", DATASET),
    "state of a generator": ("default_rng(7)", "default_rng(8)", DATASET),
    "torch generator": ("manual_seed(11)", "manual_seed(12)", {"generator"}),
    "collate function": ("torch.stack", "torch.cat", COLLATE),
    "worker_init_fn": ("seed(worker)", "seed(worker + 1)", {"worker_init_fn"}),
    "identity field": ('"batch_size": 32', '"batch_size": 64', {"batch_size"}),
}


@pytest.mark.parametrize(("old", "new", "changed"), CHANGES.values(), ids=CHANGES)
def test_a_change_that_can_matter_changes_its_part(
    original: dict[str, str], old: str, new: str, changed: set[str]
) -> None:
    assert PROGRAM.count(old) == 1
    found = digests(PROGRAM.replace(old, new))
    assert {name for name in found if found[name] != original[name]} == changed
    assert fingerprint(load(PROGRAM.replace(old, new))["parts"]()) != fingerprint(load(PROGRAM)["parts"]())


INDIFFERENT = {
    "nothing": ("", ""),
    "blank lines": ("\nclass Compose", "\n\n\n\n\nclass Compose"),
    "a comment": ("        path, label =", "        # The label is a number.\n        path, label ="),
    "the training loop": ("sum(range(10))", "sum(range(1_000_000))"),
    "an unrelated global": ("UNRELATED = 1", "UNRELATED = [object()]"),
    "another import": ("import torch\n", "import torch, json\n"),
    "text of a method's docstring": ('"""Reads one image."""', '"""Loads one image."""'),
    "text of a nested function's docstring": ('"""Scales."""', '"""Multiplies."""'),
    "a class docstring": ('    """Images and their labels."""\n', ""),
    "the script's docstring": ("A training script.", "My training script."),
    "an annotation": ("path: str,", "path: bytes,"),
    "order of a set": ('{"cat", "dog", "emu", ("a", 1)}', '{("a", 1), "emu", "dog", "cat"}'),
}


@pytest.mark.parametrize(("old", "new"), INDIFFERENT.values(), ids=INDIFFERENT)
def test_a_change_that_cannot_matter_changes_nothing(original: dict[str, str], old: str, new: str) -> None:
    assert not old or PROGRAM.count(old) == 1
    assert digests(PROGRAM.replace(old, new) if old else PROGRAM) == original


def test_the_place_of_the_script_does_not_count(original: dict[str, str]) -> None:
    assert digests("\n" * 100 + PROGRAM, "/elsewhere/other_name.py") == original


def test_a_docstring_that_is_also_used_counts() -> None:
    def function(text: str) -> Any:
        return load(f'def f():\n    "{text}"\n    return "{text}"\n')["f"]

    assert not same(function("one"), function("two"))


def test_the_first_string_of_a_lambda_or_comprehension_counts() -> None:
    for source in ("f = lambda: '{}'", "def f(x):\n    return ['{}' for _ in x]"):
        assert not same(load(source.format("one"))["f"], load(source.format("two"))["f"])


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions were part of the bytecode before Python 3.11")
def test_where_exceptions_go_counts() -> None:
    def function() -> None:
        with contextlib.suppress(OSError):
            os.stat("/")

    other = function.__code__.replace(co_exceptiontable=b"")  # type: ignore[call-arg]
    assert not same(function.__code__, other)


def test_running_the_code_changes_nothing() -> None:
    namespace = load(PROGRAM)
    parts = namespace["parts"]()
    before = describe(parts)
    for _ in range(5000):
        namespace["outer"]([1, 2])
        parts["dataset"].parse("7")
        namespace["collate"]([(torch.zeros(1), 1)])
    assert describe(parts) == before


def test_parts_may_come_in_any_order_and_their_names_count() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1})
    assert fingerprint({"a": 1, "b": 2}) != fingerprint({"a": 2, "b": 1})
    assert set(describe({"a": 1})) == {"a", ENVIRONMENT}


def test_the_versions_of_torch_and_numpy_count_as_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = describe({"a": 1})
    monkeypatch.setattr(torch, "__version__", "99.0")
    after = describe({"a": 1})
    assert after["a"] == before["a"]
    assert after[ENVIRONMENT] != before[ENVIRONMENT]


# --- modules --------------------------------------------------------------------------------------------------


class Modules:
    """Modules in a directory on sys.path, written, imported and forgotten again."""

    def __init__(self, place: pathlib.Path) -> None:
        self.place = place
        self.names: set[str] = set()

    def write(self, name: str, source: str) -> None:
        file = self.place / (name.replace(".", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(source))
        self.names.add(name.removesuffix(".__init__"))

    def forget(self) -> None:
        for name in list(sys.modules):
            if any(name == own or own.startswith(f"{name}.") for own in self.names):
                del sys.modules[name]
        importlib.invalidate_caches()

    def fingerprint(self, source: str) -> str:
        """Of what `source`, a script, calls `part`, in which all modules are imported anew."""
        self.forget()
        return fingerprint({"part": load(source)["part"]})


@pytest.fixture
def modules(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Modules(tmp_path)
    yield found
    found.forget()


REACHES = {
    "a function": "from helper import value\npart = value",
    "a class": "from helper import Data\npart = Data",
    "an object": "from helper import Data\npart = Data()",
    "a subclass": "from helper import Data\nclass part(Data): pass",
    "a module that a function names": "import helper\ndef part(): return helper.value()",
    "a function that a function names": "from helper import value\ndef part(): return value()",
    "an import in a function": "def part():\n    import helper\n    return helper.value()",
    "a from-import in a function": "def part():\n    from helper import value\n    return value()",
    "a module that an object holds": "import helper\npart = [helper]",
}


@pytest.mark.parametrize("script", REACHES.values(), ids=REACHES)
def test_the_sources_of_reached_modules_count(modules: Modules, script: str) -> None:
    helper = "from helper2 import TABLE\nclass Data: pass\ndef value(): return TABLE and len(TABLE)\n"
    modules.write("helper", helper)
    modules.write("helper2", "import helper3\nTABLE = [1]\n")
    modules.write("helper3", "def late():\n    from helper4 import x\n    return x\n")
    modules.write("helper4", "x = 1\n")
    modules.write("unrelated", "y = 1\n")
    seen = [modules.fingerprint(script), modules.fingerprint(script)]
    assert seen[0] == seen[1]
    modules.write("unrelated", "y = 2\n")
    assert modules.fingerprint(script) == seen[0]
    # helper4 is imported by a function that nobody has called.
    for name, source in (
        ("helper", helper + "# edited\n"),
        ("helper2", "import helper3\nTABLE = [1]\nOTHER = 2\n"),
        ("helper3", "def late():\n    from helper4 import x\n    return x + 1\n"),
        ("helper4", "x = 2\n"),
    ):
        modules.write(name, source)
        seen.append(modules.fingerprint(script))
    assert len(set(seen)) == 5


def test_a_module_counts_alike_before_and_after_it_is_loaded(modules: Modules) -> None:
    modules.write("package.__init__", "")
    modules.write("package.lazy", "import package.deep\nclass X: pass\n")
    modules.write("package.deep", "z = 1\n")
    script = "def part():\n    from package import lazy\n    return lazy\n"
    part = load(script)["part"]
    before = fingerprint({"part": part})
    assert "package.lazy" not in sys.modules
    part()
    assert fingerprint({"part": part}) == before


def test_relative_imports_and_packages_without_init_are_followed(modules: Modules) -> None:
    modules.write("space.data", "from . import shapes\nfrom .deep.colours import RED\ndef value(): return 1\n")
    modules.write("space.shapes", "SQUARE = 1\n")
    modules.write("space.deep.colours", "RED = 1\n")
    modules.write("space.train", "LOSS = 1\n")
    for script in (
        "import space.data\ndef part(): return space.data.value()",
        "import space.data as d\npart = d.value",
    ):
        seen = {modules.fingerprint(script)}
        for name, text in (("space.shapes", "SQUARE"), ("space.deep.colours", "RED")):
            modules.write(name, f"{text} = {len(seen) + time.perf_counter_ns()}\n")
            seen.add(modules.fingerprint(script))
        modules.write("space.train", "LOSS = 2\n")
        assert modules.fingerprint(script) in seen
        assert len(seen) == 3


def test_submodules_that_others_imported_do_not_count(modules: Modules) -> None:
    modules.write("project.__init__", "NAME = 1\n")
    modules.write("project.data", "VALUE = 1\n")
    modules.write("project.model", "LAYERS = 1\n")
    part = load("import project.data\ndef part(): return project.data.VALUE")["part"]
    before = fingerprint({"part": part})
    importlib.import_module("project.model")
    assert fingerprint({"part": part}) == before


def test_an_attribute_set_on_a_module_counts(modules: Modules) -> None:
    modules.write("settings", "SIZE = 1\nOTHER = 1\n")
    namespace = load("import settings\ndef part(): return settings.SIZE")
    before = fingerprint({"part": namespace["part"]})
    namespace["settings"].OTHER = 2
    assert fingerprint({"part": namespace["part"]}) == before
    namespace["settings"].SIZE = 2
    assert fingerprint({"part": namespace["part"]}) != before


def test_modules_that_import_each_other_are_no_trouble(modules: Modules) -> None:
    modules.write("ping", "import pong\ndef f(): return pong.g\n")
    modules.write("pong", "import ping\ndef g(): return ping.f\n")
    assert modules.fingerprint("from ping import f as part") == modules.fingerprint("from ping import f as part")


def test_a_module_that_cannot_be_parsed_counts_by_its_bytes(modules: Modules) -> None:
    modules.write("broken", "x = 1\n")
    script = "import broken as part"
    load(script)
    before = fingerprint({"part": sys.modules["broken"]})
    modules.write("broken", "x = (\n")
    assert fingerprint({"part": sys.modules["broken"]}) != before


def test_packages_count_by_version_and_not_by_source(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    place = modules.place / "site-packages"
    monkeypatch.syspath_prepend(str(place))
    source = "__version__ = '1.0'\ndef f(): return 1\nclass C: pass\n"
    for script in ("from fakepkg import f as part", "from fakepkg import C\npart = C()", "import fakepkg as part"):
        modules.names.add("fakepkg")
        modules.write("site-packages.fakepkg", source)
        before = modules.fingerprint(script)
        modules.write("site-packages.fakepkg", source + "x = 1\n")
        assert modules.fingerprint(script) == before
        modules.write("site-packages.fakepkg", source.replace("1.0", "1.1"))
        assert modules.fingerprint(script) != before


def test_packages_in_a_target_directory_count_by_version_too(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pip install --target`: beside them a module of the user's own, which counts by its source."""
    place = modules.place / "target"
    monkeypatch.syspath_prepend(str(place))
    (place / "fakepkg-1.0.dist-info").mkdir(parents=True)
    (place / "fakepkg-1.0.dist-info" / "RECORD").write_text("fakepkg.py,sha256=abc,12\n../bin/fake,,\n")
    for name, is_installed in (("fakepkg", True), ("ownpkg", False)):
        script = f"from {name} import f as part"
        modules.names.add(name)
        modules.write(f"target.{name}", "__version__ = '1.0'\ndef f(): return 1\n")
        before = modules.fingerprint(script)
        modules.write(f"target.{name}", "__version__ = '1.0'\ndef f(): return 1\nx = 1\n")
        assert (modules.fingerprint(script) == before) is is_installed
        modules.write(f"target.{name}", "__version__ = '1.1'\ndef f(): return 1\n")
        assert modules.fingerprint(script) != before


def test_the_distributions_that_a_package_requires_count(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    place = modules.place / "site-packages"
    monkeypatch.syspath_prepend(str(place))
    modules.names.add("drawing")
    modules.write("site-packages.drawing", "def f(): return 1\n")

    def install(name: str, version: str, *requires: str) -> None:
        lines = [f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {one}" for one in requires)]
        (place / f"{name}.dist-info").mkdir(exist_ok=True)
        (place / f"{name}.dist-info" / "METADATA").write_text("\n".join(lines) + "\n")

    def seen() -> str:
        # A process reads them once.
        module_sources._required_versions.cache_clear()
        module_sources._recorded_version.cache_clear()
        return modules.fingerprint("from drawing import f as part")

    install("drawing", "1.0", "fake_codec>=1", 'fake-extra>=1; extra == "all"')
    install("fake_codec", "1.0", "fake.core")
    install("fake_core", "1.0", "drawing", "not-installed")
    install("fake_extra", "1.0")
    found = [seen()]
    for name in ("drawing", "fake_codec", "fake_core", "fake_extra"):
        required = (place / f"{name}.dist-info" / "METADATA").read_text()
        (place / f"{name}.dist-info" / "METADATA").write_text(required.replace("Version: 1.0", "Version: 1.1"))
        found.append(seen())
    assert len(set(found[:4])) == 4
    assert found[4] == found[3]


def test_a_decorator_of_a_package_does_not_hide_the_function(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(modules.place / "site-packages"))
    modules.names.add("decorators")
    modules.write(
        "site-packages.decorators",
        """
        import functools
        def twice(f):
            @functools.wraps(f)
            def wrapper(x): return f(f(x))
            return wrapper
        def adder(n): return lambda x: x + n
        """,
    )
    seen = {
        modules.fingerprint(f"from decorators import *\n{line}")
        for line in (
            "@twice\ndef part(x): return x + 1",
            "@twice\ndef part(x): return x + 2",
            "part = adder(1)",
            "part = adder(2)",
        )
    }
    assert len(seen) == 4


# --- objects --------------------------------------------------------------------------------------------------


class Node:
    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class Refuses(Node):
    def __reduce_ex__(self, protocol: object) -> Any:
        raise RuntimeError("no")


class Hostile:
    """Runs into an assertion wherever the user's code should not be asked."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        raise AssertionError

    __str__ = __repr__


def test_values_of_different_types_differ() -> None:
    values: list[object] = [
        1,
        1.0,
        True,
        "1",
        b"1",
        1 + 0j,
        bytearray(b"1"),
        None,
        "None",
        ...,
        0.0,
        -0.0,
        math.nan,
        [],
        (),
        {},
        set(),
        frozenset(),
        [1],
        (1,),
        {1: 1},
        {1},
        frozenset({1}),
        [[1]],
        [(1,)],
        range(1),
        slice(1),
        np.int64(1),
        np.int32(1),
        np.array(1),
        np.array([1]),
        np.array([[1]]),
        torch.tensor(1),
        torch.tensor([1]),
        pathlib.PurePosixPath("1"),
        pathlib.PurePosixPath("1").parts,
        int,
        float,
        len,
        "".join,
        math,
        re.compile("1"),
        types.SimpleNamespace(),
        object(),
        Node(),
        Node(a=1),
        Refuses(a=1),
        Refuses(a=2),
        np.dtype("f4"),
        np.dtype("f8"),
        torch.float32,
        2**80,
        -(2**80),
        "\ud800",
        collections.deque([1]),
        collections.deque([1], 3),
        functools.partial(len, "a"),
        functools.partial(len, "b"),
        weakref.ref(Node),
        memoryview(b"1"),
        types.MappingProxyType({1: 1}),
        {1: 1}.keys(),
        {1: 1}.values(),
        logging.getLogger("one"),
        logging.getLogger("two"),
        ValueError("one"),
        ValueError("two"),
    ]
    found = [fingerprint({"value": value}) for value in values]
    assert len(set(found)) == len(values)
    assert [fingerprint({"value": value}) for value in values] == found


def test_sharing_and_interning_of_plain_data_do_not_count() -> None:
    text = "a shared text"
    other = "".join(["a shared", " text"])
    assert text is not other
    pair, twin = (text, 10**20), (other, int("1" + "0" * 20))
    assert same([text, text, sys.intern(other)], [text, other, "".join(list(text))])
    assert same([pair, pair], [pair, twin])
    assert same([[text]] * 2, [[text], [other]])
    for make in (lambda: np.float64(1.5), lambda: pathlib.Path("a"), lambda: slice(1), lambda: np.dtype("M8[s]")):
        value = make()
        assert same([value, value], [value, make()])
    assert same([Node(a=pair), pair], [Node(a=pair), twin])
    assert same([pair] * 5000, [copy.deepcopy(twin) for _ in range(5000)])


def test_marshal_gives_equal_bytes_for_equal_plain_data() -> None:
    text = "not_interned_yet"
    fresh = "".join(list(text))
    shared = [sys.intern(text), text, (text, 2**90, 1.5), (text, 2**90, 1.5), {"k": text}]
    separate = [
        fresh,
        "".join(list(text)),
        (fresh, 2**90, float("1.5")),
        (fresh, 2 * 2**89, 1.5),
        {"".join(["k"]): fresh},
    ]
    assert marshal.dumps(shared, 2) == marshal.dumps(separate, 2)
    assert marshal.dumps(shared, 4) != marshal.dumps(separate, 4)


def test_cycles_end() -> None:
    def ring(size: int, value: int) -> Node:
        nodes = [Node(value=value) for _ in range(size)]
        for node, after in zip(nodes, nodes[1:] + nodes[:1]):
            node.__dict__.update(after=after, all=nodes, some={node, after})
        return nodes[0]

    loop: list[object] = [1]
    loop.append(loop)
    table: dict[object, object] = {}
    table["self"] = (table, {"deep": [table]})
    array = np.array([None, None], dtype=object)
    array[0] = array
    tensor = torch.zeros(1)
    tensor.owner = Node(tensor=tensor)  # type: ignore[attr-defined]
    proxied: dict[str, object] = {}
    proxied["proxy"] = types.MappingProxyType(proxied)
    assert len({fingerprint({"value": value}) for value in (loop, table, array, tensor, proxied)}) == 5
    assert same(ring(3, 1), ring(3, 1))
    assert not same(ring(3, 1), ring(3, 2))
    assert not same(ring(3, 1), ring(4, 1))


def test_nesting_of_any_depth_is_walked() -> None:
    def nested(wrap: Callable[[object], object], value: object) -> object:
        for _ in range(5000):
            value = wrap(value)
        return value

    wraps: list[Callable[[object], object]] = [
        lambda value: [value],
        lambda value: (value,),
        lambda value: {"key": value},
        lambda value: Node(value=value),
        lambda value: functools.partial(print, value),
    ]
    for wrap in wraps:
        assert same(nested(wrap, 1), nested(wrap, 1))
        assert not same(nested(wrap, 1), nested(wrap, 2))


def test_sharing_does_not_multiply_the_work() -> None:
    value: object = Node()
    for _ in range(200):
        value = [value, value]
    plain: object = 1
    for _ in range(200):
        plain = [plain, plain]
    assert same(value, copy.deepcopy(value))
    assert same(plain, copy.deepcopy(plain))


def test_sets_of_objects_count_whatever_their_order_and_what_they_share() -> None:
    def build(order: list[int]) -> object:
        common = Node(table={"x": 1})
        members = [Node(number=number, common=common, functions=[build]) for number in range(4)]
        held = {members[number] for number in order}
        # Elements refer to the set itself, and are met again after it.
        members[0].held = held  # type: ignore[attr-defined]
        return [common, held, members]

    expected = fingerprint({"value": build([0, 1, 2, 3])})
    for _ in range(20):
        order = random.sample(range(4), 4)
        assert fingerprint({"value": build(order)}) == expected
    assert fingerprint({"value": build([0, 1, 2])}) != expected


def test_no_comparison_hash_or_repr_of_the_user_runs() -> None:
    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            raise AssertionError

        __hash__ = None  # type: ignore[assignment]

    class Unhashable(metaclass=Meta):
        pass

    held = {Hostile(1): Hostile(2)}
    assert same([held, {Hostile(1)}], [held, {Hostile(1)}])
    assert not same({Hostile(1)}, {Hostile(2)})
    assert same([Unhashable(), 1], [Unhashable(), 1])


def test_lazy_objects_are_not_asked_what_they_stand_for() -> None:
    class Lazy:
        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise RuntimeError("no context")

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError("no context")

    assert same(Lazy(), Lazy())


def test_what_cannot_be_pickled_counts_by_type(tmp_path: pathlib.Path) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with (tmp_path / "file").open("w") as one, (tmp_path / "other").open("w") as two, socket.socket() as plug:
        values = [threading.Lock(), numbers(), one, plug, threading.local(), multiprocessing.Lock()]
        again = [threading.Lock(), numbers(), two, plug, threading.local(), multiprocessing.Lock()]
        assert same(values, again)
        assert len({fingerprint({"value": value}) for value in values}) == len(values)
        assert same(Refuses(a=1, file=one), Refuses(a=1, file=two))
        assert not same(Refuses(a=1, file=one), Refuses(a=2, file=one))


def test_shared_values_count_by_content() -> None:
    def shared(number: int) -> Any:
        return multiprocessing.sharedctypes.Value("i", number)

    assert same(shared(1), shared(1))
    assert not same(shared(1), shared(2))
    assert not same(
        multiprocessing.sharedctypes.RawArray("i", [1, 2]), multiprocessing.sharedctypes.RawArray("i", [1, 3])
    )


def test_what_getstate_leaves_out_does_not_count() -> None:
    class Cached(Node):
        def __getstate__(self) -> object:
            return {name: value for name, value in vars(self).items() if name != "cache"}

    assert same(Cached(a=1, cache=1), Cached(a=1, cache=2))
    assert not same(Cached(a=1, cache=1), Cached(a=2, cache=1))


def test_generators_of_the_process_do_not_count_by_state(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [random.random, random.randint, np.random.rand, np.random.mtrand._rand]
    before = describe({"value": parts})
    random.random()
    np.random.rand()
    assert describe({"value": parts}) == before
    assert not same(random.Random(1).random, random.Random(2).random)
    monkeypatch.setenv("PREFETCHD_TEST", "1")
    assert same(os.environ, os.environ)


def test_default_reprs_and_addresses_do_not_count() -> None:
    assert same([object(), Node(), Node().__init__], [object(), Node(), Node().__init__])  # type: ignore[misc]


def test_class_bodies_count_and_their_caches_do_not() -> None:
    source = """
    import abc, typing
    class part(abc.ABC, typing.Generic[typing.TypeVar("T")]):
        __slots__ = ("a",)
        limit = 1
        @abc.abstractmethod
        def f(self): return 1
        @classmethod
        def g(cls): return super().__new__(cls)
        def h(self): return self.limit
        k = h
    """
    one, two = (load(textwrap.dedent(source))["part"] for _ in range(2))
    assert isinstance(one, abc.ABCMeta)
    issubclass(int, one)
    assert same(one, two)
    for old, new in (("= 1", "= 2"), ('("a",)', '("a", "b")'), ("@classmethod", "@staticmethod"), ("k = h", "k = f")):
        assert not same(one, load(textwrap.dedent(source.replace(old, new)))["part"])


def test_enums_count_by_name_and_value() -> None:
    class Colour(enum.Enum):
        RED = 1
        ROSE = 1  # noqa: PIE796
        BLUE = 2

    class Bits(enum.Flag):
        A = 1
        B = 2

    assert same([Colour.RED], [Colour.ROSE])
    assert not same(Colour.RED, Colour.BLUE)
    assert not same(Bits.A | Bits.B, Bits.A)


def test_dataclasses_and_slots_count_by_their_fields() -> None:
    @dataclasses.dataclass(frozen=True)
    class Options:
        size: int
        names: tuple[str, ...] = ()

    @dataclasses.dataclass
    class Slotted:
        __slots__ = ("size",)
        size: int

    for cls in (Options, Slotted):
        assert same(cls(1), cls(1))
        assert not same(cls(1), cls(2))


# --- arrays and tensors ---------------------------------------------------------------------------------------

CHANGED_TENSORS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "value": (lambda: torch.zeros(3), lambda: torch.tensor([0.0, 0.0, 1.0])),
    "dtype": (lambda: torch.zeros(2), lambda: torch.zeros(1, dtype=torch.float64)),
    "shape": (lambda: torch.zeros(2, 3), lambda: torch.zeros(3, 2)),
    "strides": (lambda: torch.zeros(2, 2), lambda: torch.zeros(2, 2).t()),
    "requires_grad": (lambda: torch.zeros(2), lambda: torch.zeros(2, requires_grad=True)),
    "type": (lambda: torch.zeros(2, requires_grad=True), lambda: torch.nn.Parameter(torch.zeros(2))),
    "bfloat16": (lambda: torch.zeros(2, dtype=torch.bfloat16), lambda: torch.ones(2, dtype=torch.bfloat16)),
    "bool": (lambda: torch.zeros(2, dtype=torch.bool), lambda: torch.ones(2, dtype=torch.bool)),
    "complex": (lambda: torch.tensor([1j]), lambda: torch.tensor([1j]).conj()),
    "sparse": (lambda: torch.eye(2).to_sparse(), lambda: (2 * torch.eye(2)).to_sparse()),
    "meta": (lambda: torch.zeros(2, device="meta"), lambda: torch.zeros(3, device="meta")),
    "attribute": (lambda: with_attribute(1), lambda: with_attribute(2)),
    "storage": (lambda: torch.zeros(2).untyped_storage(), lambda: torch.ones(2).untyped_storage()),
    "generator": (lambda: torch.Generator().manual_seed(1), lambda: torch.Generator().manual_seed(2)),
    "module": (lambda: linear(0.0), lambda: linear(1.0)),
    "view of a part": (lambda: torch.arange(4)[1:3], lambda: torch.arange(4)[0:2]),
    "size": (lambda: torch.Size([1]), lambda: torch.Size([2])),
    "device": (lambda: torch.device("cpu"), lambda: torch.device("meta")),
}


def with_attribute(number: int) -> torch.Tensor:
    tensor = torch.zeros(1)
    tensor.number = number  # type: ignore[attr-defined]
    return tensor


def linear(value: float) -> torch.nn.Module:
    layer = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.constant_(layer.weight, value)
    return torch.nn.Sequential(layer, torch.nn.ReLU())


@pytest.mark.parametrize(("one", "other"), CHANGED_TENSORS.values(), ids=CHANGED_TENSORS)
def test_tensors_count_by_all_that_a_batch_can_show(one: Callable[[], object], other: Callable[[], object]) -> None:
    assert same(one(), one())
    assert same(other(), other())
    assert not same(one(), other())


PADDED = np.dtype([("a", "i1"), ("b", "f8")], align=True)
CHANGED_ARRAYS: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "value": (lambda: np.zeros(3), lambda: np.array([0.0, 0.0, -0.0])),
    "dtype": (lambda: np.zeros(2, "<i4"), lambda: np.zeros(2, ">i4")),
    "shape": (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
    "order": (lambda: np.zeros((2, 2)), lambda: np.zeros((2, 2), order="F")),
    "content of a transposed array": (lambda: np.arange(4.0).reshape(2, 2).T, lambda: np.zeros((2, 2)).T),
    "content of a strided array": (lambda: np.arange(8)[::2], lambda: np.arange(9)[1::2]),
    "text": (lambda: np.array(["a", "b"]), lambda: np.array(["a", "c"])),
    "dates": (lambda: np.array(["2020-01-01"], "M8[D]"), lambda: np.array(["2020-01-02"], "M8[D]")),
    "unit of dates": (lambda: np.array(["2020-01-01"], "M8[D]"), lambda: np.array(["2020-01-01"], "M8[s]")),
    "objects": (lambda: np.array([1, "a", None], object), lambda: np.array([1, "b", None], object)),
    "fields": (lambda: np.zeros(2, PADDED), lambda: np.ones(2, PADDED)),
    "names of fields": (lambda: np.zeros(2, [("a", "i4")]), lambda: np.zeros(2, [("b", "i4")])),
    "long doubles": (lambda: np.zeros(2, "g"), lambda: np.array([0, 1e-19], "g") + 1),
    "scalar": (lambda: np.float32(1), lambda: np.float32(2)),
    "mask": (lambda: np.ma.array([1, 2], mask=[False, True]), lambda: np.ma.array([1, 2], mask=[True, False])),
    "generator": (lambda: np.random.default_rng(1), lambda: np.random.default_rng(2)),
    "bit generator": (lambda: np.random.PCG64(1), lambda: np.random.PCG64(2)),
    "random state": (lambda: np.random.RandomState(1), lambda: np.random.RandomState(2)),
    "empty": (lambda: np.zeros((0, 3)), lambda: np.zeros((3, 0))),
    "void": (lambda: np.void(b"ab"), lambda: np.void(b"ac")),
}


@pytest.mark.parametrize(("one", "other"), CHANGED_ARRAYS.values(), ids=CHANGED_ARRAYS)
def test_arrays_count_by_all_that_a_batch_can_show(one: Callable[[], object], other: Callable[[], object]) -> None:
    assert same(one(), one())
    assert same(other(), other())
    assert not same(one(), other())


def test_padding_does_not_count() -> None:
    dirty = np.frombuffer(b"\xff" * 2 * PADDED.itemsize, PADDED).copy()
    dirty["a"], dirty["b"] = 0, 0
    assert dirty.tobytes() != np.zeros(2, PADDED).tobytes()
    assert same(dirty, np.zeros(2, PADDED))


def test_a_generator_that_was_used_counts_as_another() -> None:
    for make in (np.random.default_rng, np.random.RandomState, random.Random):
        generator = make(5)
        before = fingerprint({"value": generator})
        generator.random()
        assert fingerprint({"value": generator}) != before


def test_mapped_files_count_by_name_place_and_stamp(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(100_000))

    def mapped(offset: int = 5000) -> Any:
        return np.memmap(path, np.uint8, "r", offset=offset, shape=(1000,))

    assert same(mapped(), mapped())
    assert same(mapped()[10:], mapped()[10:])
    assert same(mapped()[10:20], mapped(5010)[:10])
    views = [mapped(), mapped(5001), mapped()[1:], mapped()[:-1], np.asarray(mapped()), mapped().astype("i2")]
    assert len({fingerprint({"value": view}) for view in views}) == len(views)
    before = fingerprint({"value": mapped()})
    os.utime(path, ns=(1, 1))
    assert fingerprint({"value": mapped()}) != before
    copy_of_path = tmp_path / "copy.bin"
    copy_of_path.write_bytes(bytes(100_000))
    assert not same(mapped(), np.memmap(copy_of_path, np.uint8, "r", offset=5000, shape=(1000,)))


# --- properties -----------------------------------------------------------------------------------------------

ATOMS: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(),
    st.sampled_from([0.0, -0.0, 1.0, 1.5, math.inf]),
    st.floats(allow_nan=False),
    st.sampled_from(["", "0", "1", "a"]),
    st.text(max_size=5),
    st.binary(max_size=3),
    st.complex_numbers(allow_nan=False),
)
HASHABLE: st.SearchStrategy[Any] = st.recursive(
    ATOMS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        inner.map(lambda value: Node(value=value)),
    ),
    max_leaves=12,
)


def canonical(value: Any) -> Any:
    """A text that two values share when they are the same value to a program."""
    if isinstance(value, Node):
        return f"Node({canonical(value.value)})"  # type: ignore[attr-defined]
    if isinstance(value, (set, frozenset)):
        return f"{type(value).__name__}({sorted(map(canonical, value))})"
    if isinstance(value, dict):
        return f"dict({[(canonical(key), canonical(item)) for key, item in value.items()]})"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({list(map(canonical, value))})"
    return f"{type(value).__name__} {value!r}"


def rebuilt(value: Any) -> Any:
    """The same value of objects of which none is shared or interned."""
    if isinstance(value, Node):
        return Node(value=rebuilt(value.value))  # type: ignore[attr-defined]
    if isinstance(value, (set, frozenset)):
        return type(value)(map(rebuilt, sorted(value, key=canonical, reverse=True)))
    if isinstance(value, dict):
        return {rebuilt(key): rebuilt(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(rebuilt, value))
    return "".join(list(value)) if isinstance(value, str) else value


@given(VALUES)
@tries(150)
def test_equal_values_have_equal_digests(value: Any) -> None:
    expected = fingerprint({"value": value})
    assert fingerprint({"value": copy.deepcopy(value)}) == expected
    assert fingerprint({"value": rebuilt(value)}) == expected


@given(VALUES, VALUES)
@tries(300)
def test_digests_are_equal_for_equal_values_only(one: Any, other: Any) -> None:
    assert same(one, other) == (canonical(one) == canonical(other))
    assert same([one, other], [other, one]) == (canonical(one) == canonical(other))


# --- speed ----------------------------------------------------------------------------------------------------


def best_s(measured: Callable[[], object], times: int = 5) -> float:
    found = []
    for _ in range(times):
        # Of the CPU: a machine that is busy with others takes longer for both, but not at the same time.
        before = time.thread_time()
        measured()
        found.append(time.thread_time() - before)
    return min(found)


def test_a_million_samples_cost_a_few_times_their_marshalling() -> None:
    paths = [f"/data/train/n{number % 1000:08d}/{number}.JPEG" for number in range(1_000_000)]
    for value in (paths, [(path, number) for number, path in enumerate(paths)]):
        floor = best_s(lambda value=value: xxhash.xxh3_128_digest(marshal.dumps(value, 2)))  # type: ignore[misc]
        assert best_s(lambda value=value: fingerprint({"value": value})) < 5 * floor  # type: ignore[misc]


def test_arrays_and_tensors_are_read_at_the_speed_of_the_hash() -> None:
    # Not zeros: their pages are one page, which stays in the cache.
    array = np.ones((4096, 4096))
    floor = best_s(lambda: xxhash.xxh3_128_digest(array.data))
    for value in (array, np.asfortranarray(array), torch.from_numpy(array)):
        assert best_s(lambda value=value: fingerprint({"value": value})) < 4 * floor + 0.01  # type: ignore[misc]
