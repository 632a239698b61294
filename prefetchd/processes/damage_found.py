"""Remembers whether this process has read a sample cache with damaged samples. A worker reports it to the daemon in its
status."""

from __future__ import annotations

found = False
"""True once note() was called in this process, or before it was forked. Read after each task, so it is no call."""


def note() -> None:
    """Note that a sample cache which this process reads has damaged samples."""
    global found
    found = True
