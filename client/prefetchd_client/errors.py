"""This module exports the errors that a loader raises on its own account, to be caught by name.

Your own exceptions come as they were raised, with the worker's traceback.
"""

from prefetchd.wire.errors import (
    BatchTooLargeError,
    BufferTooSmallError,
    CallerError,
    ClosedError,
    DaemonRefusedError,
    DaemonUnavailableError,
    ForkedError,
    InvariantError,
    NoSpaceError,
    PrefetchdError,
    ProtocolError,
    RemoteError,
    StreamFailedError,
    TaskTimeoutError,
    UnpicklableError,
    UntrustedPathError,
    WorkerDiedError,
)

__all__ = [
    "BatchTooLargeError",
    "BufferTooSmallError",
    "CallerError",
    "ClosedError",
    "DaemonRefusedError",
    "DaemonUnavailableError",
    "ForkedError",
    "InvariantError",
    "NoSpaceError",
    "PrefetchdError",
    "ProtocolError",
    "RemoteError",
    "StreamFailedError",
    "TaskTimeoutError",
    "UnpicklableError",
    "UntrustedPathError",
    "WorkerDiedError",
]
