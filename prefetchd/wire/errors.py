"""Defines the one tree of errors. Each says what happened, got against allowed, and the knob to turn.

Three kinds that are never mixed: a caller's mistake (`CallerError`), something another process or the machine did
(`RemoteError`), and a broken promise of our own (`InvariantError`).
"""

from __future__ import annotations


class PrefetchdError(Exception):
    """Base of every error that prefetchd raises on its own account."""

    code = "error"


class CallerError(PrefetchdError, ValueError):
    """The caller asked for something that cannot be: wrong arguments, an unpicklable dataset."""

    code = "caller"


class BufferTooSmallError(CallerError):
    """The ring would hold fewer batches than it must; names `buffer` and the sizes."""

    code = "buffer_too_small"


class BatchTooLargeError(CallerError):
    """One batch needs more than its ring can have; names the sizes and what bounds it."""

    code = "batch_too_large"


class UnpicklableError(CallerError):
    """The dataset, a sampler, collate_fn or worker_init_fn cannot be handed to another process; names the attribute.

    `why` has the attribute and pickle's error, without the advice.
    """

    code = "unpicklable"

    def __init__(self, message: str, why: str = "") -> None:
        super().__init__(message)
        self.why = why or message


class ForkedError(CallerError):
    """A handle was used in a forked child of the process that made it."""

    code = "forked"


class UntrustedPathError(CallerError):
    """Another user of the machine could have put something there; names owner, mode and what is allowed."""

    code = "untrusted_path"


class ClosedError(CallerError):
    """A handle was used after close()."""

    code = "closed"


class RemoteError(PrefetchdError, RuntimeError):
    """Another process or the machine failed."""

    code = "remote"


class NoSpaceError(RemoteError):
    """Shared memory or the memory limit cannot hold the ring; names the sizes and the knob.

    `short_bytes` is how much is missing, or 0 when that is not known.
    """

    code = "no_space"

    def __init__(self, message: str, short_bytes: int = 0) -> None:
        super().__init__(message)
        self.short_bytes = short_bytes


class DaemonUnavailableError(RemoteError):
    """No daemon answers and none could be started; names the socket and the log."""

    code = "daemon_unavailable"


class DaemonRefusedError(RemoteError):
    """The daemon answered and refused; the message is the daemon's."""

    code = "daemon_refused"


class StreamFailedError(RemoteError):
    """The stream cannot continue: its program did not load, its workers cannot start."""

    code = "stream_failed"


class WorkerDiedError(RemoteError):
    """Workers die on this sample, also when nothing else runs; or on this batch, wherever in it."""

    code = "worker_died"


class TaskTimeoutError(RemoteError):
    """A fill task took longer than the loader's timeout: its worker was killed; names the sample."""

    code = "task_timeout"


class ProtocolError(RemoteError):
    """Bytes on a socket or in a segment that the format does not allow."""

    code = "protocol"


class InvariantError(PrefetchdError):
    """The code broke a promise of its own. Always a bug in prefetchd."""

    code = "invariant"


def _tree(root: type[PrefetchdError]) -> dict[str, type[PrefetchdError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


ERRORS_BY_CODE = _tree(PrefetchdError)


def error_from_code(code: str, message: str) -> PrefetchdError:
    """Returns the error that a peer named by `code`; an unknown code (a newer peer) becomes RemoteError."""
    return ERRORS_BY_CODE.get(code, RemoteError)(message)
