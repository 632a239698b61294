"""Reads the configuration from its file."""

from __future__ import annotations

import os.path
from pathlib import Path

from prefetchd.daemon.config.daemon_config import Config, ConfigError, parse_config


def read_config(path: Path) -> Config:
    """Returns the configuration in the file `path`. Raises ConfigError, also when the file cannot be read."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise ConfigError([f"{path}: cannot be read: {why}"]) from None
    return parse_config(text, str(path), os.path.dirname(os.path.abspath(path)))
