"""Checks that shared memory survives a logout: RemoveIPC and lingering (logind.conf(5))."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path

from prefetchd.cli.checks.finding import ADVICE, OK, Finding

FIRST_USER_UID = 1000
PLACES = ("/etc/systemd/logind.conf", "/run/systemd/logind.conf", "/usr/lib/systemd/logind.conf")


def findings() -> Iterator[Finding]:
    uid = os.geteuid()
    try:
        user = pwd.getpwuid(uid).pw_name
    except KeyError:
        user = str(uid)
    yield removal_at_logout(Path("/"), uid, user)


def removal_at_logout(root: Path, uid: int, user: str) -> Finding:
    """Checks the system below `root`."""
    check = "RemoveIPC"
    why = (
        "at your last logout systemd removes every name in /dev/shm that is yours: a run goes on, but its ring ends "
        "with the daemon"
    )
    if not (root / "run/systemd/system").is_dir():
        return Finding(check, OK, "systemd does not run here", why)
    if uid < FIRST_USER_UID:
        return Finding(check, OK, f"uid {uid} is a system user's, whose shared memory stays", why)
    if not _removes(root):
        return Finding(check, OK, "RemoveIPC=no", why)
    if (root / "var/lib/systemd/linger" / user).exists():
        return Finding(check, OK, f"RemoveIPC=yes, but {user} lingers and is never logged out", why)
    return Finding(check, ADVICE, f"RemoveIPC=yes, and {user} does not linger", why, f"loginctl enable-linger {user}")


def _removes(root: Path) -> bool:
    """Returns what logind.conf and its drop-ins say; yes by default."""
    files = [root / place[1:] for place in reversed(PLACES)]
    files += sorted(
        (each for place in PLACES for each in (root / f"{place[1:]}.d").glob("*.conf")), key=lambda path: path.name
    )
    value = "yes"
    for file in files:
        try:
            text = file.read_text("utf-8", "replace")
        except OSError:
            continue
        found = re.findall(r"^\s*RemoveIPC\s*=\s*(\S+)", text, re.M)
        value = found[-1] if found else value
    return value.lower() in ("yes", "true", "1", "on")
