"""One tree of errors: codes name classes on the wire, and the three kinds never mix."""

from __future__ import annotations

import pytest

from prefetchd.wire import errors
from prefetchd.wire.errors import (
    ERRORS_BY_CODE,
    CallerError,
    InvariantError,
    PrefetchdError,
    ProtocolError,
    RemoteError,
    error_from_code,
)

CLASSES = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PrefetchdError)]


def test_codes_are_those_that_were_given():
    """They are on the wire: a code is never given to another error."""
    assert {code: cls.__name__ for code, cls in ERRORS_BY_CODE.items()} == {
        "error": "PrefetchdError",
        "caller": "CallerError",
        "buffer_too_small": "BufferTooSmallError",
        "batch_too_large": "BatchTooLargeError",
        "unpicklable": "UnpicklableError",
        "forked": "ForkedError",
        "untrusted_path": "UntrustedPathError",
        "closed": "ClosedError",
        "remote": "RemoteError",
        "no_space": "NoSpaceError",
        "daemon_unavailable": "DaemonUnavailableError",
        "daemon_refused": "DaemonRefusedError",
        "stream_failed": "StreamFailedError",
        "task_timeout": "TaskTimeoutError",
        "worker_died": "WorkerDiedError",
        "protocol": "ProtocolError",
        "invariant": "InvariantError",
    }


def test_every_error_has_a_code_of_its_own():
    assert len(CLASSES) > 10
    assert all("code" in vars(cls) for cls in CLASSES)
    assert len({cls.code for cls in CLASSES}) == len(CLASSES) == len(ERRORS_BY_CODE)


@pytest.mark.parametrize("cls", CLASSES)
def test_a_code_becomes_its_error_again(cls):
    error = error_from_code(cls.code, "what happened")
    assert type(error) is cls
    assert str(error) == "what happened"


@pytest.mark.parametrize("code", ["", "of a newer peer", "CallerError"])
def test_an_unknown_code_is_a_remote_error(code):
    error = error_from_code(code, "what happened")
    assert type(error) is RemoteError
    assert str(error) == "what happened"


@pytest.mark.parametrize("cls", [cls for cls in CLASSES if cls is not PrefetchdError])
def test_an_error_is_of_exactly_one_kind(cls):
    assert sum(issubclass(cls, kind) for kind in (CallerError, RemoteError, InvariantError)) == 1


def test_kinds_can_be_caught_as_the_errors_that_python_has_for_them():
    assert issubclass(CallerError, ValueError)
    assert issubclass(RemoteError, RuntimeError)
    assert issubclass(ProtocolError, RemoteError)
    assert not issubclass(InvariantError, (ValueError, RuntimeError))


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_says_when_it_is_raised(cls):
    assert cls.__doc__
    assert cls.__doc__ != Exception.__doc__
