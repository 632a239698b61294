"""Segments and sockets that nobody uses any more. Who lives is told by locks, never by a pid.

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
from collections.abc import Iterator
from pathlib import Path

from prefetchd.cli.checks.finding import FAILED, OK, Finding
from prefetchd.wire.byte_sizes import format_bytes
from prefetchd.wire.file_locks import is_locked, try_lock
from prefetchd.wire.lock_file import LockFile
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, RuntimePaths, runtime_paths
from prefetchd.wire.segment_layout import CONSUMER_LOCK_OFFSET, CONSUMERS, DAEMON_LOCK_OFFSET, WRITERS_LOCK_OFFSET
from prefetchd.wire.status_layout import STATUS_BYTES, decode_snapshot

SHARED_MEMORY = "/dev/shm"
_SEGMENT = re.compile(re.escape(SEGMENT_PREFIX) + r"(?P<instance>[0-9a-f]+)-(?P<kind>ring|program|status)(?:-.*)?")
JUST_MADE_S = 60.0
"""A program that is empty and younger is about to be locked by its trainer."""


@dataclasses.dataclass
class Instance:
    """What one socket's daemons have left; `paths` None: nobody knows which socket that was."""

    paths: RuntimePaths | None = None
    rings: list[str] = dataclasses.field(default_factory=list)
    programs: list[str] = dataclasses.field(default_factory=list)
    status: str = ""


def findings(paths: RuntimePaths, *, fix: bool) -> Iterator[Finding]:
    """Of all daemons of this user. With `fix`, what is left behind is removed."""
    why = "nobody uses it; shared memory stays taken until somebody removes it"
    left: list[str] = []
    removed: list[str] = []
    total_bytes = 0
    for instance in _instances(paths).values():
        with _as_daemon(instance, fix=fix) as is_ours:
            if not is_ours:
                continue
            for path in _unused(instance):
                total_bytes += _allocated_bytes(path)
                left.append(str(path))
                if fix and _remove(path):
                    removed.append(str(path))
    if not left:
        yield Finding("leftovers", OK, "none")
    elif len(removed) == len(left):
        yield Finding("leftovers", OK, f"removed {format_bytes(total_bytes)}: {', '.join(removed)}")
    else:
        kept = [path for path in left if path not in removed]
        text = f"{format_bytes(total_bytes)}: {', '.join(kept)}"
        yield Finding("leftovers", FAILED, text, why, "prefetchd doctor --fix")


def _instances(paths: RuntimePaths) -> dict[str, Instance]:
    """By their token; the one of `paths` is always among them."""
    found = {paths.instance: Instance(paths)}
    for name in sorted(os.listdir(SHARED_MEMORY)):
        match = _SEGMENT.fullmatch(name)
        if match is None or not _is_own(Path(SHARED_MEMORY, name)):
            continue
        instance = found.setdefault(match["instance"], Instance())
        if match["kind"] == "status":
            instance.status = name
            instance.paths = instance.paths or _paths_in(name, match["instance"])
        else:
            (instance.rings if match["kind"] == "ring" else instance.programs).append(name)
    return found


def _paths_in(name: str, instance: str) -> RuntimePaths | None:
    """The socket that the status segment tells of, if that is the one it is named for."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        data = Path(SHARED_MEMORY, name).read_bytes()
        for copy in (0, 1) if len(data) >= STATUS_BYTES else ():
            snapshot = decode_snapshot(data, copy)
            if snapshot is not None:
                paths = runtime_paths(snapshot["daemon"]["socket"])
                return paths if paths.instance == instance else None
    return None


@contextlib.contextmanager
def _as_daemon(instance: Instance, *, fix: bool) -> Iterator[bool]:
    """True while no daemon serves that socket: with `fix`, because its lock is ours. Without its directory there is
    none."""
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
        if fix and not any(Path(SHARED_MEMORY, ring).exists() for ring in instance.rings):
            lock.release()
        else:
            lock.leave()


def _unused(instance: Instance) -> Iterator[Path]:
    for name in instance.rings:
        if _is_free(Path(SHARED_MEMORY, name), ring=True):
            yield Path(SHARED_MEMORY, name)
    for name in instance.programs:
        path = Path(SHARED_MEMORY, name)
        if _is_free(path, ring=False) and (_size(path) or _age_s(path) > JUST_MADE_S):
            yield path
    if instance.paths is None:
        # Whose daemon's it is nobody knows: it is left alone.
        return
    if instance.status:
        yield Path(SHARED_MEMORY, instance.status)
    if _answers(instance.paths.socket) is False:
        yield instance.paths.socket


def _is_free(path: Path, *, ring: bool) -> bool:
    """True when no daemon, trainer or worker has locked it. A look: nothing is locked after it."""
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
    """Unlinks it; a segment only with the daemon's lock on it, so that nobody adopts it meanwhile."""
    if path.parent != Path(SHARED_MEMORY) or path.name.endswith("-status"):
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
    """Whether somebody listens on that socket of ours; None when there is none."""
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
