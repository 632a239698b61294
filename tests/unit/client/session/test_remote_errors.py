"""A worker's exception in the trainer: same type, same text, same state, and where it came from."""

from __future__ import annotations

import pickle
import traceback

import numpy as np
import pytest
from prefetchd_client.session.remote_errors import WorkerTraceback, rebuild_exception, stream_failure

from prefetchd.wire.errors import (
    BatchTooLargeError,
    InvariantError,
    NoSpaceError,
    ProtocolError,
    RemoteError,
    StreamFailedError,
)
from prefetchd.wire.remote_exception import RemoteException, encode_exception
from tests.scenario.bad_datasets import DecodeFailed, ManyArguments


def sent(error, pickled=None):
    """The error as a worker sends it."""
    if pickled is None:
        pickled = pickle.dumps((type(error), error.args, error.__dict__))
    return encode_exception(
        RemoteException(type(error).__qualname__, str(error), "Traceback ...\n  in worker", "dataset[5]", pickled)
    )


class CannotBeMade(Exception):  # noqa: N818
    def __new__(cls, *arguments):
        if arguments:
            raise RuntimeError("not like this")
        return super().__new__(cls)


class Slotted(Exception):  # noqa: N818
    __slots__ = ("place",)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a value"),
        ValueError(),
        ValueError("two", 2),
        KeyError("a key"),
        FileNotFoundError(2, "No such file or directory"),
        OSError("without a number"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
        UnicodeEncodeError("ascii", "Ж", 0, 1, "ordinal not in range"),
        SyntaxError("bad syntax", ("file.py", 3, 4, "x = = 1")),
        ImportError("no module"),
        SystemError("oh"),
        ManyArguments("a.csv", line=12),
        DecodeFailed("a.txt"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_error_comes_back_as_it_was(error):
    found = rebuild_exception(sent(error))
    assert type(found) is type(error)
    assert found.args == error.args
    assert str(found) == str(error)
    assert repr(found) == repr(error)
    assert found.__dict__ == error.__dict__
    for name in ("errno", "strerror", "encoding", "object", "start", "end", "reason", "lineno", "text"):
        assert getattr(found, name, None) == getattr(error, name, None)


@pytest.mark.parametrize(
    ("error", "attributes"),
    [
        (ImportError("cannot load"), {"name": "codec", "path": "/lib/codec.so"}),
        (ModuleNotFoundError("no module"), {"name": "codec"}),
        (AttributeError("no attribute"), {"name": "shape"}),
        (NameError("not defined"), {"name": "image"}),
        (Slotted("slotted"), {"place": None, "more": [1]}),
        (np.exceptions.AxisError("axis 3"), {"_msg": "axis 3", "axis": None, "ndim": None}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_an_error_keeps_in_slots_comes_with_it(error, attributes):
    found = rebuild_exception(sent(error, pickle.dumps((type(error), error.args, attributes))))
    assert (type(found), str(found)) == (type(error), str(error))
    assert {name: getattr(found, name) for name in attributes} == attributes
    assert not found.__dict__.keys() & {"name", "path", "place"}


def test_its_cause_tells_where_it_was_and_shows_the_worker_s_traceback():
    error = rebuild_exception(sent(ValueError("a value")))
    assert isinstance(error.__cause__, WorkerTraceback)
    assert error.__cause__.location == "dataset[5]"
    text = "".join(traceback.format_exception(error))
    assert "in a prefetchd worker, at dataset[5]\n\nTraceback ...\n  in worker" in text
    assert text.endswith("ValueError: a value\n")


@pytest.mark.parametrize(
    "encoded",
    [
        sent(ValueError("a value"), pickled=b""),
        sent(ValueError("a value"), pickled=b"garbage"),
        sent(ValueError("a value"), pickled=pickle.dumps((int, (), {}))),
        sent(ValueError("a value"), pickled=pickle.dumps("something else")),
        sent(ValueError("a value"), pickled=b"cno_such_module\nError\n."),
        sent(ValueError("a value"), pickled=pickle.dumps((CannotBeMade, (1,), {}))),
    ],
    ids=["no pickle", "garbage", "no exception", "no triple", "no module", "constructor raises"],
)
def test_what_cannot_be_rebuilt_is_told_by_name(encoded):
    error = rebuild_exception(encoded)
    assert type(error) is RemoteError
    assert str(error) == "ValueError: a value"
    assert error.__cause__.location == "dataset[5]"


def test_stop_iteration_is_told_by_name_lest_it_ends_the_loop():
    error = rebuild_exception(sent(StopIteration("no more")))
    assert type(error) is RemoteError
    assert str(error) == "StopIteration: no more"


def test_an_error_of_ours_comes_back_as_itself():
    encoded = encode_exception(RemoteException("BatchTooLargeError", "it takes 5 bytes", "", "epoch 0, step 1"))
    error = rebuild_exception(encoded)
    assert type(error) is BatchTooLargeError
    assert str(error) == "it takes 5 bytes"


@pytest.mark.parametrize("name", ["annotations", "ERRORS_BY_CODE", "error_from_code", "no_such_name"])
def test_a_name_that_is_no_error_of_ours_is_the_user_s(name):
    error = rebuild_exception(encode_exception(RemoteException(name, "text", "", "place")))
    assert type(error) is RemoteError
    assert str(error) == f"{name}: text"


def test_damaged_bytes_are_a_protocol_error():
    with pytest.raises(ProtocolError):
        rebuild_exception(b"\xc1")


# --- a stream that failed ---


def test_a_failed_stream_without_an_exception_is_what_the_daemon_says():
    error = stream_failure("no_space", "needs 5 MiB", b"")
    assert type(error) is NoSpaceError
    assert str(error) == "needs 5 MiB"
    assert error.__cause__ is None


def test_a_failed_stream_tells_what_the_user_s_code_raised():
    error = stream_failure("stream_failed", "worker_init_fn(0)", sent(ConnectionError("no database")))
    assert type(error) is StreamFailedError
    assert str(error) == "worker_init_fn(0) raised ConnectionError: no database"
    assert type(error.__cause__) is ConnectionError
    assert "in a prefetchd worker" in "".join(traceback.format_exception(error))


def test_what_the_daemon_has_said_already_is_not_said_twice():
    error = stream_failure("stream_failed", "ImportError: no module x", sent(ImportError("no module x")))
    assert str(error) == "ImportError: no module x"


def test_an_unknown_code_is_a_remote_error_and_an_invariant_its_own():
    assert type(stream_failure("of the future", "text", b"")) is RemoteError
    assert type(stream_failure("invariant", "text", b"")) is InvariantError
