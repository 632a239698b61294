"""Reports where the user's code raised, and carries that to the trainer."""

from __future__ import annotations

import contextlib
import io
import traceback
import types
from typing import Any

from prefetchd.wire.messages import LoadFailed
from prefetchd.wire.remote_exception import PICKLE_LIMIT_BYTES, RemoteException, encode_exception
from prefetchd.wire.stream_spec import StreamSpec
from prefetchd.workers.class_names import ClassNamingPickler
from prefetchd.workers.program import Program, load_program

MESSAGE_LIMIT_CHARACTERS = 2000


class UserCodeError(Exception):
    """The user's code raised; `location` says where, `__cause__` is what it raised."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.location = location


class user_code:  # noqa: N801 - reads as a statement
    """Turns what the block raises into UserCodeError at `location`."""

    def __init__(self, location: str) -> None:
        self._location = location

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception):
            raise UserCodeError(self._location) from error


def text_of(error: BaseException) -> str:
    """Returns str(error), as far as that can be had."""
    try:
        return str(error)
    except Exception:
        return "an exception whose text cannot be had"


def remote_exception(error: UserCodeError) -> RemoteException:
    """Describes the user's exception as it travels to the trainer."""
    cause = error.__cause__
    assert cause is not None
    return RemoteException(
        type_name=type(cause).__qualname__,
        message=text_of(cause),
        traceback=_traceback_of(cause),
        location=error.location,
        pickled=_pickled_exception(cause),
    )


def load_program_or_fail(fd: int, spec: StreamSpec) -> Program | LoadFailed:
    """Loads the program behind `fd`, of a stream of `spec`. Returns a LoadFailed when that fails: importing the user's
    modules may even exit."""
    try:
        return load_program(fd, again=spec.order == "iterable")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        failure = UserCodeError("loading the program")
        failure.__cause__ = error
        return load_failed(failure)


def load_failed(error: UserCodeError) -> LoadFailed:
    """Describes a failure of the user's code that did not even let a zygote or worker begin."""
    remote = remote_exception(error)
    message = f"{remote.location}: {remote.type_name}: {remote.message}"
    return LoadFailed(message[:MESSAGE_LIMIT_CHARACTERS], encode_exception(remote))


def _traceback_of(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except Exception:
        # Its notes, say, are a property that raises: where it came from can still be told.
        return "".join(traceback.format_tb(error.__traceback__))


def _attributes_of(error: BaseException) -> dict[str, Any]:
    """Returns the error's __dict__ and what it keeps in slots, as ImportError does its name and path."""
    found = dict(error.__dict__)
    for kind in type(error).__mro__:
        for name, member in vars(kind).items():
            # A subclass may have a property in a member's place. An AttributeError's `obj` may be the whole dataset.
            if not _is_member(member) or getattr(type(error), name) is not member or name == "obj":
                continue
            with contextlib.suppress(AttributeError):
                found[name] = getattr(error, name)
        if kind is OSError:
            # It tells a file name that is None from none.
            found = {name: value for name, value in found.items() if value is not None or name in error.__dict__}
    return found


def _is_member(member: object) -> bool:
    return isinstance(member, types.MemberDescriptorType) and not member.__name__.startswith("__")


def _pickled_exception(error: BaseException) -> bytes:
    target = io.BytesIO()
    try:
        # OSError keeps file names outside of `args`. A __reduce__ of the class's own is not asked: what it gives is for
        # the constructor, which the trainer does not call.
        arguments = OSError.__reduce__(error)[1] if isinstance(error, OSError) else error.args
        ClassNamingPickler(target, 5).dump((type(error), arguments, _attributes_of(error)))
    except Exception:
        return b""
    pickled = target.getvalue()
    return pickled if len(pickled) <= PICKLE_LIMIT_BYTES else b""
