"""Tells units that `prefetchd systemd install` has written from those of others, by a mark in their first line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

MARK = "# Written by `prefetchd systemd install`, which `prefetchd systemd uninstall` undoes; sha256 of the rest: "
_COMMAND = re.compile(r"^(Exec(?:Start|Reload)=).*?( (?:run|reload)\b)", re.M)


def marked(text: str) -> str:
    """Returns the unit `text` with the mark before it."""
    return f"{MARK}{_digest(text)}\n{text}"


def is_as_written(path: Path, template: str) -> bool:
    """Returns True when the unit at `path` is one that was installed, and nobody has changed it since: its mark says
    so, or it is `template` but for the command, as units were that have no mark. Raises OSError."""
    text = path.read_bytes().decode("utf-8", "replace")
    first, _, rest = text.partition("\n")
    if first.startswith(MARK):
        return first.removeprefix(MARK) == _digest(rest)
    return _COMMAND.sub(r"\1\2", text) == _COMMAND.sub(r"\1\2", template)


def drop_ins(directory: Path, units: Iterable[str]) -> list[Path]:
    """Lists the drop-ins that `units` have in `directory`."""
    return sorted(path for unit in units for path in (directory / f"{unit}.d").glob("*.conf"))


def enabled_instances(directory: Path, template: str) -> set[str]:
    """Returns the instances of the template unit, such as "ada" of prefetchd@.service, that are enabled in
    `directory`."""
    before, after = template.split("@")
    links = directory.glob(f"*.wants/{before}@?*{after}")
    return {path.name.removeprefix(f"{before}@").removesuffix(after) for path in links}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
