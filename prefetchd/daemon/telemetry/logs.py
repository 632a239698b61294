"""Writes the daemon's log: one JSON object a line, in a rotated file or on stderr."""

from __future__ import annotations

import faulthandler
import json
import logging
import logging.handlers
import os
import sys
import time
from io import TextIOWrapper
from pathlib import Path

from prefetchd.wire.errors import CallerError
from prefetchd.wire.trusted_paths import check_file, make_directory

ROTATE_BYTES = 8 << 20
ROTATED_FILES = 3


class JsonLines(logging.Formatter):
    """Formats an event as one JSON object: time (ISO 8601, UTC), level, event, then the event's own fields."""

    def format(self, record: logging.LogRecord) -> str:
        stamp = self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z"
        line = {"time": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)

    converter = staticmethod(time.gmtime)


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """Writes a log that nobody else can read, for errors and paths of the user's are in it; and follows no link
    elsewhere.

    It also has what the interpreter says when it dies of a signal, as of SIGBUS when somebody cuts off memory that is
    mapped here: that is a stack, and no JSON.
    """

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)
        try:
            check_file(fd, self.baseFilename)
            os.fchmod(fd, 0o600)
            faulthandler.enable(file=fd)
            return open(fd, "a", encoding="utf-8")
        except BaseException:
            os.close(fd)
            raise


def log_to(path: Path | None, level: str) -> None:
    """Sends the "prefetchd" log to the file at `path`, or to stderr. Raises CallerError when it cannot be written."""
    handler: logging.Handler
    if path is None:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            make_directory(path.parent, "Choose another place for the log with $XDG_STATE_HOME")
            handler = _PrivateLog(path, maxBytes=ROTATE_BYTES, backupCount=ROTATED_FILES)
        except OSError as error:
            raise CallerError(
                f"the log {path} cannot be written: {error.strerror}. Choose another place with $XDG_STATE_HOME"
            ) from None
    handler.setFormatter(JsonLines())
    logger = logging.getLogger("prefetchd")
    for former in logger.handlers:
        former.close()
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
