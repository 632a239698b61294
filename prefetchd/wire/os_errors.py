"""Puts what the operating system refuses into words, with what to turn where descriptors ran out."""

from __future__ import annotations

import errno
import os
import resource


def why(error: OSError) -> str:
    """Says why something cannot be opened, made or started."""
    if error.errno == errno.EMFILE:
        return f"{os.strerror(error.errno)}: {few_descriptors()}"
    return os.strerror(error.errno) if error.errno else str(error)


def few_descriptors() -> str:
    """Says how many descriptors this process may have, and how to allow more."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"process {os.getpid()} may have {soft} open; raise `ulimit -n`, or LimitNOFILE= of the service"
