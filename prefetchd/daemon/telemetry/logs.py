"""Writes the daemon's log: one JSON object a line, in a rotated file or on stderr."""

from __future__ import annotations

import faulthandler
import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Mapping
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


class JournalLines(JsonLines):
    """Formats an event as JsonLines does, behind its level as the journal reads it: `journalctl -p warning` shows
    warnings. Source: sd-daemon(3)."""

    def format(self, record: logging.LogRecord) -> str:
        level = next((level for least, level in _JOURNAL_LEVELS if record.levelno >= least), _JOURNAL_DEBUG)
        return f"<{level}>{super().format(record)}"


_JOURNAL_LEVELS = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_JOURNAL_DEBUG = 7


def is_journal(fd: int, env: Mapping[str, str] = os.environ) -> bool:
    """Returns True when what is written to `fd` goes to the journal. Source: systemd.exec(5), $JOURNAL_STREAM, which
    names the device and the inode of the stream that systemd has made: a command of the service may have put another
    in its place."""
    device, _, inode = env.get("JOURNAL_STREAM", "").partition(":")
    try:
        stated = os.fstat(fd)
        return (stated.st_dev, stated.st_ino) == (int(device), int(inode))
    except (OSError, ValueError):
        return False


class _PrivateLog(logging.handlers.RotatingFileHandler):
    """Writes a log that nobody else can read, for errors and paths of the user's are in it; and follows no link
    elsewhere.

    It also has what the interpreter says when it dies of a signal, as of SIGBUS when somebody cuts off memory that is
    mapped here: that is a stack, and no JSON.
    """

    def _open(self) -> TextIOWrapper:
        # What it wrote to is closed, and the number may be that of a ring next.
        faulthandler.disable()
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)
        try:
            check_file(fd, self.baseFilename)
            os.fchmod(fd, 0o600)
            faulthandler.enable(file=fd)
            return open(fd, "a", encoding="utf-8")
        except BaseException:
            faulthandler.disable()
            os.close(fd)
            raise

    def close(self) -> None:
        faulthandler.disable()
        super().close()


def log_to(path: Path | None, level: str) -> None:
    """Sends the "prefetchd" log to the file at `path`, or to stderr. Raises CallerError when it cannot be written."""
    handler: logging.Handler
    lines: logging.Formatter = JsonLines()
    if path is None:
        handler = logging.StreamHandler(sys.stderr)
        if is_journal(2):
            lines = JournalLines()
    else:
        try:
            make_directory(path.parent, "Choose another place for the log with $XDG_STATE_HOME")
            handler = _PrivateLog(path, maxBytes=ROTATE_BYTES, backupCount=ROTATED_FILES)
        except OSError as error:
            raise CallerError(
                f"the log {path} cannot be written: {error.strerror}. Choose another place with $XDG_STATE_HOME"
            ) from None
    handler.setFormatter(lines)
    logger = logging.getLogger("prefetchd")
    for former in logger.handlers:
        former.close()
    logger.handlers[:] = [handler]
    logger.setLevel(level.upper())
    # Else the root's handlers, where somebody has set any, would write each line once more.
    logger.propagate = False
