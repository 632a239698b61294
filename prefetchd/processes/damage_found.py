"""Remembers whether this process has read a sample cache with damaged samples. A worker reports it to the daemon in its
status."""

from __future__ import annotations

_found = False


def note() -> None:
    """Note that a sample cache which this process reads has damaged samples."""
    global _found
    _found = True


def is_noted() -> bool:
    """True once note() was called in this process, or before it was forked."""
    return _found
