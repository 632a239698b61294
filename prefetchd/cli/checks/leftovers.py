"""Finds segments and sockets that nobody uses any more. Locks say who lives, never a pid.

A daemon that was killed leaves its rings for the next one on its socket, and trainers may still use them: what a living
process has locked is never touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import socket
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prefetchd.cli.checks.finding import FAILED, OK, Finding
from prefetchd.cli.checks.mounts import own_directories_in_memory
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.errors import ProtocolError
from prefetchd.wire.file_locks import is_locked, try_lock
from prefetchd.wire.history_file import former
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, SHARED_MEMORY, RuntimePaths, runtime_paths
from prefetchd.wire.segment_layout import CONSUMER_LOCK_OFFSET, CONSUMERS, DAEMON_LOCK_OFFSET, WRITERS_LOCK_OFFSET
from prefetchd.wire.status_layout import STATUS_BYTES, decode_head, decode_snapshot

_SEGMENT = re.compile(re.escape(SEGMENT_PREFIX) + r"(?P<instance>[0-9a-f]+)-(?P<kind>ring|program|status)(?:-.*)?")
JUST_MADE_S = 60.0
"""The age up to which an empty program is left alone: its trainer is about to lock it."""


@dataclasses.dataclass
class Instance:
    """The things that one socket's daemons have left; `paths` None: nobody knows which socket that was."""

    paths: RuntimePaths | None = None
    rings: list[Path] = dataclasses.field(default_factory=list)
    programs: list[Path] = dataclasses.field(default_factory=list)
    statuses: list[Path] = dataclasses.field(default_factory=list)


def findings(paths: RuntimePaths, ram_disks: Iterable[str] = (), *, only: bool = False, fix: bool) -> Iterator[Finding]:
    """Checks the leftovers of all daemons of this user, or `only` of those of `paths`; rings also on `ram_disks`, on
    those that dead daemons name, and on those that are mounted. With `fix`, what is left behind is removed."""
    why = "what nobody uses any more takes memory until somebody removes it"
    left: list[str] = []
    removed: list[str] = []
    total_bytes = 0
    for token, instance in _instances(paths, ram_disks).items():
        if only and token != paths.instance:
            continue
        # With `fix` the lock is held until all is removed: no daemon can begin meanwhile and adopt what is about to go.
        with _as_daemon(instance, fix=fix) as is_ours:
            if not is_ours:
                continue
            for path in _unused(instance):
                total_bytes += _allocated_bytes(path)
                left.append(str(path))
                if fix and _remove(path):
                    removed.append(str(path))
    if not left:
        yield Finding("leftovers", OK, "none", why)
    elif len(removed) == len(left):
        yield Finding("leftovers", OK, f"removed {format_bytes(total_bytes)}: {', '.join(removed)}", why)
    else:
        kept = [path for path in left if path not in removed]
        text = f"{format_bytes(total_bytes)}: {', '.join(kept)}"
        yield Finding("leftovers", FAILED, text, why, "prefetchd doctor --fix")


def _instances(paths: RuntimePaths, ram_disks: Iterable[str]) -> dict[str, Instance]:
    """Maps tokens to what their daemons have left; the one of `paths` is always among them."""
    found = {paths.instance: Instance(paths)}
    directories = list(ram_disks)
    for token, kind, path in _segments(SHARED_MEMORY):
        instance = found.setdefault(token, Instance())
        if kind == "status":
            instance.statuses.append(path)
            snapshot = _snapshot_in(path)
            instance.paths = instance.paths or _paths_in(snapshot, token)
            directories += _directories_in(snapshot)
        else:
            (instance.rings if kind == "ring" else instance.programs).append(path)
    with contextlib.suppress(OSError):
        directories += own_directories_in_memory()
    for directory in sorted({os.path.realpath(each) for each in directories} - {SHARED_MEMORY}):
        for token, kind, path in _segments(directory):
            if kind == "ring":
                found.setdefault(token, Instance()).rings.append(path)
    return found


def _segments(directory: str) -> Iterator[tuple[str, str, Path]]:
    """Yields (token of its daemons, kind, path) of each segment of ours in the directory."""
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return
    for name in names:
        match = _SEGMENT.fullmatch(name)
        if match is not None and _is_own(Path(directory, name)):
            yield match["instance"], match["kind"], Path(directory, name)


def _snapshot_in(path: Path) -> dict[str, Any]:
    """Reads the snapshot in the status segment; empty when it cannot be read."""
    with contextlib.suppress(OSError, ValueError, ProtocolError):
        data = path.read_bytes()
        current = decode_head(data).current
        # The other one is older, and whole where the daemon died as it wrote this one.
        for copy in (current, 1 - current) if len(data) >= STATUS_BYTES else ():
            snapshot: dict[str, Any] | None = decode_snapshot(data, copy)
            if snapshot is not None:
                return snapshot
    return {}


def _paths_in(snapshot: dict[str, Any], token: str) -> RuntimePaths | None:
    """Returns the paths of the socket that a snapshot names, if its segment is named for that socket."""
    with contextlib.suppress(ValueError, KeyError, TypeError):
        paths = runtime_paths(snapshot["daemon"]["socket"])
        return paths if paths.instance == token else None
    return None


def _directories_in(snapshot: dict[str, Any]) -> list[str]:
    """Lists the directories of the snapshot's rings; daemons of older versions do not name them."""
    with contextlib.suppress(KeyError, TypeError):
        return [each["ring"]["directory"] for each in snapshot["streams"] if each["ring"] is not None]
    return []


@contextlib.contextmanager
def _as_daemon(instance: Instance, *, fix: bool) -> Iterator[bool]:
    """Gives True while no daemon serves that socket: with `fix`, because its lock is ours. Without its directory there
    is none."""
    paths = instance.paths
    if paths is None or not paths.lock.parent.is_dir():
        yield True
        return
    if not fix and not paths.lock.exists():
        yield _answers(paths.socket) is not True
        return
    lock = LockFile(paths.lock)
    if not lock.acquire():
        yield False
        return
    try:
        # Somebody may have removed the lock file of a daemon that lives: it will make that again.
        yield _answers(paths.socket) is not True
    finally:
        # The number in it counts the daemons whose rings are still there.
        if fix and not any(ring.exists() for ring in instance.rings):
            lock.release()
        else:
            lock.leave()


def _unused(instance: Instance) -> Iterator[Path]:
    for path in instance.rings:
        if _is_free(path, ring=True):
            yield path
    for path in instance.programs:
        if _is_free(path, ring=False) and (_size(path) or _age_s(path) > JUST_MADE_S):
            yield path
    if instance.paths is None:
        # Whose daemon's it is nobody knows: it is left alone.
        return
    yield from instance.statuses
    history = instance.paths.history
    yield from (each for each in (former(history), history) if _is_own(each))
    if _answers(instance.paths.socket) is False:
        yield instance.paths.socket


def _is_free(path: Path, *, ring: bool) -> bool:
    """Returns True when no daemon, trainer or worker has locked it. It only looks: nothing stays locked."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if is_locked(fd, DAEMON_LOCK_OFFSET):
            return False
        return not ring or not (is_locked(fd, CONSUMER_LOCK_OFFSET, CONSUMERS) or is_locked(fd, WRITERS_LOCK_OFFSET))
    finally:
        os.close(fd)


def _remove(path: Path) -> bool:
    """Unlinks it; a segment only with the daemon's lock on it, so that nobody adopts it meanwhile. Returns False when
    that cannot be done."""
    match = _SEGMENT.fullmatch(path.name)
    if match is None or match["kind"] == "status":
        path.unlink(missing_ok=True)
        return True
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        if not try_lock(fd, DAEMON_LOCK_OFFSET) or is_locked(fd, CONSUMER_LOCK_OFFSET, CONSUMERS):
            return False
        path.unlink(missing_ok=True)
        return True
    finally:
        os.close(fd)


def _answers(path: Path) -> bool | None:
    """Returns True when somebody listens on that socket of ours, False when nobody does; None when there is none."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode) or not _is_own(path):
            return None
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.settimeout(1.0)
            probe.connect(os.fspath(path))
    except ConnectionRefusedError:
        return False
    except FileNotFoundError:
        return None
    except OSError:
        # It does not answer now, which is not to say that nobody is there.
        return True
    return True


def _is_own(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.geteuid()
    except OSError:
        return False


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _allocated_bytes(path: Path) -> int:
    try:
        return path.lstat().st_blocks * 512
    except OSError:
        return 0


def _age_s(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0
