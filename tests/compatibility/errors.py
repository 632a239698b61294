"""Errors: what the user's code raises arrives with its type, text, state and the worker's traceback.

The reference is DataLoader without workers: with workers it makes a new exception of type and text, and where that does
not work a RuntimeError.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate

from tests.compatibility import material as m
from tests.compatibility.case import Loading, case, every_batch, loading

STOPPED = "a StopIteration from a sample ends DataLoader's epoch in silence; ours is an error that says so"
FATAL = (
    "without workers it would end the trainer, with workers DataLoader says that a worker exited; ours names the sample"
)
UNPICKLABLE = "an exception that cannot be pickled arrives as its name and text, as with DataLoader's workers"
CHAIN = "the exceptions that it was raised from are in the text of the traceback, not in __cause__"
UNPICKLED = r"\[2\]: .Unpicklable\('holds a file'\). and .RemoteError\('Unpicklable: holds a file'\)."
CAUSES = r"\[2\](: '1 items' and '2 items'|\[0\]: .*'seven'\" and 'dataset\[4\], epoch 0, step 2')"
# How it is told depends on who sees the death first: its iterator, or a signal's handler.
DIED = (
    r": .RuntimeError\('DataLoader worker .* exited unexpectedly.*'\). and .WorkerDiedError\(.dataset\[4\], epoch 0, .*"
)


class TwoArguments(Exception):  # noqa: N818
    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}")
        self.path = path
        self.line = line


class KeywordOnly(Exception):  # noqa: N818
    def __init__(self, *, path: str) -> None:
        super().__init__()
        self.path = path

    def __str__(self) -> str:
        return f"bad file {self.path}"


class WithMessage(Exception):  # noqa: N818
    message = "a class attribute"

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.message = message


class WithSlots(Exception):  # noqa: N818
    __slots__ = ("place",)

    def __init__(self, place: int) -> None:
        super().__init__("slotted")
        self.place = place


class MissingFile(FileNotFoundError):  # noqa: N818
    """An OSError with an attribute."""

    hint = ""


class MissingModule(ModuleNotFoundError):  # noqa: N818
    def __init__(self, package: str) -> None:
        super().__init__(f"install {package}", name=package)


class WithArray(Exception):  # noqa: N818
    """Holds a tensor and an array."""


class Unpicklable(Exception):  # noqa: N818
    def __init__(self) -> None:
        super().__init__("holds a file")
        self.file = sys.stderr


class Raising(m.Made):
    """Item 4 raises, in __getitem__ itself."""

    def __getitem__(self, index: int) -> Any:
        if index == 4:
            raise ValueError(f"sample {index} is broken")
        return self.make(index)


def at_four(raise_it: Any, **arguments: Any) -> Loading:
    """Item 4 of ten calls `raise_it`; batches of two."""

    def get(index: int) -> int:
        if index == 4:
            raise_it()
        return index

    return loading(m.Made(get), **({"batch_size": 2} | arguments))


@case("errors", workers=0)
def value_error() -> Loading:
    def open_picture() -> None:
        raise ValueError("sample 4 is broken", 4)

    return at_four(open_picture)


@case("errors", workers=0)
def the_traceback_of_a_deep_call() -> Loading:
    def outer() -> None:
        inner()

    def inner() -> None:
        int("seven")

    return at_four(outer)


@case("errors", workers=0)
def an_error_in_getitem_of_a_class() -> Loading:
    return loading(Raising(int), batch_size=2)


@case("errors", workers=0)
def key_error() -> Loading:
    return at_four(lambda: {}["label"])


@case("errors", workers=0)
def key_error_of_a_tuple() -> Loading:
    return at_four(lambda: {}[("a", 1)])


@case("errors", workers=0)
def index_error() -> Loading:
    return at_four(lambda: [][4])


@case("errors", workers=0)
def index_error_of_a_dataset_that_is_too_short() -> Loading:
    class Short(list[int]):
        def __len__(self) -> int:
            return 5

    return loading(Short([1, 2, 3]), batch_size=2)


@case("errors", workers=0)
def attribute_error() -> Loading:
    return at_four(lambda: "".shape)  # type: ignore[attr-defined]


@case("errors", workers=0)
def name_error() -> Loading:
    return at_four(lambda: undefined_name)  # type: ignore[name-defined]  # noqa: F821


@case("errors", workers=0)
def type_error() -> Loading:
    return at_four(lambda: len(4))  # type: ignore[arg-type]


@case("errors", workers=0)
def zero_division_and_assertion() -> Loading:
    def check() -> None:
        assert 1 / 4 == 0, ("shape", (3, 4))

    return at_four(check)


@case("errors", workers=0)
def import_error_with_name_and_path() -> Loading:
    def import_it() -> None:
        raise ImportError("cannot load", name="codec", path="/lib/codec.so")

    return at_four(import_it)


@case("errors", workers=0)
def module_not_found() -> Loading:
    return at_four(lambda: __import__("no_such_module_here"))


@case("errors", workers=0)
def import_from_of_what_is_not_there() -> Loading:
    def import_it() -> None:
        from math import no_such_function  # type: ignore[attr-defined]  # noqa: F401

    return at_four(import_it)


@case("errors", workers=0)
def a_subclass_of_module_not_found() -> Loading:
    def import_it() -> None:
        raise MissingModule("codec")

    return at_four(import_it)


@case("errors", workers=0)
def file_not_found() -> Loading:
    return at_four(lambda: open("/no/such/file"))


@case("errors", workers=0)
def an_os_error_with_two_file_names() -> Loading:
    return at_four(lambda: os.rename("/no/such/file", "/no/such/place"))


@case("errors", workers=0)
def a_subclass_of_os_error() -> Loading:
    def open_it() -> None:
        error = MissingFile(2, "not here", "a.png")
        error.hint = "download it"
        raise error

    return at_four(open_it)


@case("errors", workers=0)
def an_os_error_with_text_only() -> Loading:
    def open_it() -> None:
        raise OSError("truncated")

    return at_four(open_it)


@case("errors", workers=0)
def unicode_decode_error() -> Loading:
    return at_four(lambda: b"ab\xff".decode())


@case("errors", workers=0)
def json_decode_error() -> Loading:
    return at_four(lambda: json.loads('{"a": }'))


@case("errors", workers=0)
def syntax_error() -> Loading:
    return at_four(lambda: compile("x = = 1", "config.py", "exec"))


@case("errors", workers=0)
def recursion_error() -> Loading:
    def again() -> None:
        again()

    return at_four(again, use=_without_text)


@case("errors", workers=0)
def memory_error() -> Loading:
    return at_four(lambda: np.empty(1 << 60))


@case("errors", workers=0)
def torch_shapes_that_do_not_fit() -> Loading:
    return at_four(lambda: torch.ones(2, 3) @ torch.ones(4, 5))


@case("errors", workers=0)
def torch_out_of_memory() -> Loading:
    def allocate() -> None:
        raise torch.OutOfMemoryError("no memory")

    return at_four(allocate)


@case("errors", workers=0)
def numpy_axis_error() -> Loading:
    return at_four(lambda: np.ones(3).sum(axis=7))


@case("errors", workers=0)
def a_constructor_with_two_arguments() -> Loading:
    def parse() -> None:
        raise TwoArguments("a.csv", 4)

    return at_four(parse)


@case("errors", workers=0)
def a_constructor_with_keywords_only() -> Loading:
    def parse() -> None:
        raise KeywordOnly(path="a.csv")

    return at_four(parse)


@case("errors", workers=0)
def a_class_with_a_message_of_its_own() -> Loading:
    def parse() -> None:
        raise WithMessage("broken", 4)

    return at_four(parse)


@case("errors", workers=0)
def an_exception_with_slots() -> Loading:
    def parse() -> None:
        raise WithSlots(4)

    return at_four(parse)


@case("errors", workers=0)
def an_exception_with_notes() -> Loading:
    def parse() -> None:
        error = ValueError("broken")
        error.__notes__ = ["in a.csv", "line 4"]  # type: ignore[attr-defined]
        raise error

    return at_four(parse)


@case("errors", workers=0)
def an_exception_of_the_script() -> Loading:
    return loading(m.main().MainDataset(m.main().main_error), batch_size=2)


@case("errors", workers=0)
def an_exception_with_a_tensor_and_an_array() -> Loading:
    def parse() -> None:
        raise WithArray(torch.ones(2), np.ones(3))

    return at_four(parse, use=_arguments)


@case("errors", workers=0, reason=UNPICKLABLE, difference=UNPICKLED)
def an_exception_that_cannot_be_pickled() -> Loading:
    def parse() -> None:
        raise Unpicklable

    return at_four(parse)


@case("errors", workers=0)
def an_exception_raised_from_another() -> Loading:
    def parse() -> None:
        try:
            int("seven")
        except ValueError as error:
            raise RuntimeError("cannot parse sample 4") from error

    return at_four(parse)


@case("errors", workers=0, reason=CHAIN, difference=CAUSES)
def the_cause_of_an_exception() -> Loading:
    def parse() -> None:
        try:
            int("seven")
        except ValueError as error:
            raise RuntimeError("cannot parse sample 4") from error

    return at_four(parse, use=_causes)


@case("errors", workers=0)
def an_exception_group() -> Loading:
    def parse() -> None:
        if sys.version_info >= (3, 11):
            raise ExceptionGroup("two", [ValueError("a"), KeyError("b")])  # noqa: F821
        raise ValueError("a")

    return at_four(parse)


@case("errors", workers=0, reason=STOPPED, difference="2 outcomes and 5")
def stop_iteration_in_a_sample() -> Loading:
    return at_four(lambda: next(iter(())))


@case("errors", reason=FATAL, difference=DIED)
def a_sample_that_ends_its_process() -> Loading:
    return at_four(lambda: os._exit(3), use=_until_an_error)


@case("errors", workers=0)
def a_long_message() -> Loading:
    def parse() -> None:
        raise ValueError("long " * 1000)

    return at_four(parse)


@case("errors", workers=0)
def collate_fn_raises() -> Loading:
    def collate(samples: Any) -> Any:
        if 4 in samples:
            raise TwoArguments("collate", len(samples))
        return samples

    return loading(m.Made(int), batch_size=2, collate_fn=collate)


@case("errors", workers=0)
def default_collate_refuses_a_type() -> Loading:
    return loading(m.Made(lambda index: m.Bag(index=index)), batch_size=2)


@case("errors", workers=0)
def default_collate_refuses_none() -> Loading:
    return loading(m.Made(lambda index: None if index == 4 else index), batch_size=2)


@case("errors", workers=0)
def default_collate_refuses_shapes_that_differ() -> Loading:
    return loading(m.Made(m.of_length), batch_size=2)


@case("errors", workers=0)
def default_collate_refuses_arrays_of_objects() -> Loading:
    return loading(m.Made(lambda index: np.array([None, index])), batch_size=2)


@case("errors", workers=0)
def default_collate_refuses_lists_of_unequal_length() -> Loading:
    return loading(m.Made(lambda index: [1] * (index + 1)), batch_size=2)


@case("errors", workers=0)
def default_collate_refuses_a_missing_key() -> Loading:
    return loading(m.Made(lambda index: {"a": 1} if index == 4 else {"b": 1, "a": 2}), batch_size=2)


@case("errors", workers=0)
def integers_that_are_too_large() -> Loading:
    return loading(m.Made(lambda index: 1 << 70 if index == 4 else index), batch_size=2)


@case("errors", workers=0)
def an_exception_whose_class_a_function_has_made() -> Loading:
    kind = m.error_made_within()

    def fail() -> None:
        raise kind("of a class that no name leads to", 4)

    return at_four(fail)


@case("errors", workers=0)
def every_sample_raises() -> Loading:
    return loading(m.Made(lambda index: 1 // 0), batch_size=2)


@case("errors", workers=0)
def an_error_in_a_nested_collate() -> Loading:
    def collate(samples: Any) -> Any:
        return default_collate([{"x": [sample, object()]} for sample in samples])

    return loading(m.Made(int), batch_size=2, collate_fn=collate)


def _without_text(loader: Any) -> Any:
    return [type(each.error) if hasattr(each, "error") else each for each in every_batch(loader)]


def _arguments(loader: Any) -> Any:
    return [each.error.args if hasattr(each, "error") else each for each in every_batch(loader)]


def _causes(loader: Any) -> Any:
    return [each.error.__cause__.args if hasattr(each, "error") else each for each in every_batch(loader)]


def _until_an_error(loader: Any) -> Any:
    return list(loader)
