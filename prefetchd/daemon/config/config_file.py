"""Reads the configuration from its file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from prefetchd.daemon.config.daemon_config import Config, ConfigError, parse_config
from prefetchd.wire.trusted_paths import is_ours_alone


def read_config(path: Path) -> Config:
    """Returns the configuration in the file `path`. Raises ConfigError, also when the file cannot be read, or others
    may write to it."""
    try:
        with path.open(encoding="utf-8") as file:
            _check_owner(os.fstat(file.fileno()), path)
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"{path}: cannot be read: {why}"]) from None
    return parse_config(text, str(path), os.path.dirname(os.path.abspath(path)))


def _check_owner(found: os.stat_result, path: Path) -> None:
    """Raises ConfigError unless the file is ours alone: it names the code that the daemon's processes run."""
    if not is_ours_alone(found):
        raise ConfigError(
            [
                f"{path} belongs to uid {found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; allowed: a file of "
                f"uid {os.geteuid()} or root that nobody else may write to, as it decides what code the daemon runs: "
                f"chown {os.geteuid()} {path}; chmod go-w {path}"
            ]
        )
