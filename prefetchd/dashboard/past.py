"""Reads what streams did before: their points and, of those that have ended, their last status."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefetchd.dashboard.series import Series
from prefetchd.status.points import COLUMNS
from prefetchd.wire.history_file import read_history
from prefetchd.wire.runtime_paths import RuntimePaths

HISTORY_S = 3600.0


def history_path(status: Mapping[str, Any], paths: RuntimePaths) -> Path:
    """Return where the daemon writes its history."""
    return Path(status.get("daemon", {}).get("history") or paths.history)


def read_past(history: Path, since_unix_s: float | None = None) -> tuple[dict[str, Series], dict[str, dict[str, Any]]]:
    """Return each stream's points since then, by default of the last hour, and the last status of each ended stream."""
    points: dict[str, Series] = {}
    ended: dict[str, dict[str, Any]] = {}
    for entry in read_history(history, time.time() - HISTORY_S if since_unix_s is None else since_unix_s):
        found = entry.get("points")
        for name, values in found.items() if isinstance(found, dict) else ():
            if isinstance(values, list) and len(values) == len(COLUMNS) - 1:
                points.setdefault(name, Series()).add((entry["t"], *values))
                ended.pop(name, None)
        last = entry.get("ended")
        if isinstance(last, dict) and isinstance(last.get("name"), str):
            ended[last["name"]] = last
    return points, ended
