"""rebuild_exception makes a worker's exception anew, to be raised in the trainer: same type, same message, with the
worker's traceback."""

from __future__ import annotations

import contextlib
import io
import pickle
import types
from typing import Any

from prefetchd.wire import errors
from prefetchd.wire.errors import DaemonRefusedError, PrefetchdError, RemoteError, error_from_code
from prefetchd.wire.messages import Refused
from prefetchd.wire.remote_exception import RemoteException, decode_exception
from prefetchd_client.batches.class_lookup import find_named


class WorkerTraceback(Exception):  # noqa: N818 - the cause of an error, never raised itself
    """Carries the traceback as the worker saw it, and which sample it was about."""

    def __init__(self, location: str, text: str) -> None:
        super().__init__(location, text)
        self.location = location
        self.text = text

    def __str__(self) -> str:
        return f"in a prefetchd worker, at {self.location}\n\n{self.text}"


def rebuild_exception(encoded: bytes) -> BaseException:
    """Returns the exception to raise; its __cause__ tells where it came from. Raises ProtocolError.

    An exception of ours comes back as itself. One whose class cannot be had here becomes a RemoteError that says so,
    and so does StopIteration, which would end the loop in silence.
    """
    remote = decode_exception(encoded)
    ours = getattr(errors, remote.type_name, None)
    if not remote.pickled and isinstance(ours, type) and issubclass(ours, PrefetchdError):
        return ours(remote.message)
    error = _original(remote) if remote.pickled else None
    if error is None or isinstance(error, StopIteration):
        error = RemoteError(f"{remote.type_name}: {remote.message}")
    error.__cause__ = WorkerTraceback(remote.location, remote.traceback)
    return error


def stream_failure(code: str, message: str, encoded: bytes) -> PrefetchdError:
    """Returns why a stream cannot go on: what the daemon says, and what the user's code raised (`encoded`, if not
    empty)."""
    if not encoded:
        return error_from_code(code, message)
    remote = decode_exception(encoded)
    raised = f"{remote.type_name}: {remote.message}"
    error = error_from_code(code, message if remote.message in message else f"{message} raised {raised}")
    error.__cause__ = rebuild_exception(encoded)
    return error


def refusal(message: Refused) -> PrefetchdError:
    """Returns the error of a refusal: a caller's mistake under its own name, whatever else under one."""
    error = error_from_code(message.code, message.message)
    return error if not isinstance(error, RemoteError) else DaemonRefusedError(message.message)


def _original(remote: RemoteException) -> BaseException | None:
    try:
        kind, arguments, attributes = _Unpickler(io.BytesIO(remote.pickled)).load()
        if not issubclass(kind, BaseException):
            return None
        # Not through the constructor: it may take other arguments than those that ended up in `args`.
        error: BaseException = kind.__new__(kind, *arguments)
        if not isinstance(error, OSError):
            # Of its arguments an OSError keeps two in `args`.
            error.args = arguments
        with contextlib.suppress(Exception):
            _initialise_builtin(error, arguments)
        for name, value in attributes.items():
            if isinstance(getattr(kind, name, None), types.MemberDescriptorType):
                # An ExceptionGroup's are read only, and come with its arguments.
                with contextlib.suppress(AttributeError):
                    setattr(error, name, value)
            else:
                error.__dict__[name] = value
    except Exception:
        return None
    return error


def _initialise_builtin(error: BaseException, arguments: tuple[Any, ...]) -> None:
    """Calls the __init__ of a builtin exception: some keep what they tell outside of `args`, as UnicodeDecodeError
    does."""
    for kind in type(error).__mro__:
        initialise = vars(kind).get("__init__")
        if initialise is not None and not isinstance(initialise, types.FunctionType):
            initialise(error, *arguments)
            return


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        return find_named(pid)
