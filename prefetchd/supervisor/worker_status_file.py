"""Holds the memory that a worker's status lies in, and reads it: the daemon's end. The worker's end is
workers.worker_status_writer."""

from __future__ import annotations

import dataclasses
import os

from prefetchd.wire.worker_status import (
    NO_WORKER_STATUS,
    STACK_OFFSET,
    STATUS_WORDS,
    STATUS_WORDS_BYTES,
    WorkerStatus,
    read_worker_status,
)


class WorkerStatusFile:
    """A memfd for the status of one child process."""

    def __init__(self) -> None:
        """Makes the memfd. Raises OSError."""
        self.fd = os.memfd_create("prefetchd-note", os.MFD_CLOEXEC)
        os.ftruncate(self.fd, STACK_OFFSET)
        os.pwrite(self.fd, STATUS_WORDS.pack(*dataclasses.astuple(NO_WORKER_STATUS)), 0)

    def read(self) -> WorkerStatus:
        """Reads the status; NO_WORKER_STATUS when the worker has made the memfd shorter."""
        found = os.pread(self.fd, STATUS_WORDS_BYTES, 0)
        return read_worker_status(found) if len(found) == STATUS_WORDS_BYTES else NO_WORKER_STATUS

    def close(self) -> None:
        """Closes the memfd. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
