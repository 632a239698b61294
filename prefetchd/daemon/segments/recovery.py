"""Finds segments of predecessors on the same socket when a daemon starts, and adopts or reclaims them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Container, Iterable

from prefetchd.daemon.segments.resources import StreamResources
from prefetchd.kill_points.kill_points import kill_point
from prefetchd.ring.segment import unlink
from prefetchd.wire.file_locks import try_lock
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, SHARED_MEMORY, RuntimePaths
from prefetchd.wire.segment_layout import DAEMON_LOCK_OFFSET

log = logging.getLogger("prefetchd")


def find_streams(
    paths: RuntimePaths, generation: int, ram_disks: Iterable[str] = (), memory_bytes: int | None = None
) -> list[StreamResources]:
    """Takes over the rings of dead daemons of this socket, with their programs, also those on `ram_disks`. A stream
    whose batches are files is found by these: its ring is unlinked. What cannot be taken over, and programs
    that no living process has locked, are unlinked: a client holds the lock on a program that it is about to hand
    over."""
    found, reclaimed = [], []
    for directory in (SHARED_MEMORY, *ram_disks):
        for name in _segments(paths, "ring", directory):
            fd = _lock(name, directory)
            if fd < 0:
                continue
            kill_point("daemon.adopt.locked")
            try:
                resources = StreamResources.of_dead_daemon(name, fd, generation, directory, memory_bytes)
            except Exception as error:  # whatever a damaged one has in it: it is one of many
                log.warning(
                    "ring not adopted", extra={"fields": {"segment": name, "why": f"{type(error).__name__}: {error}"}}
                )
                with contextlib.suppress(OSError):
                    unlink(name, directory)
                reclaimed.append(name)
                continue
            if resources.spec.store == "files":
                resources.close()
            else:
                found.append(resources)
    _log_reclaimed(reclaimed)
    reclaim_programs(paths)
    return found


def empty_programs(paths: RuntimePaths) -> frozenset[str]:
    """Returns the programs that nothing was written to yet. One that still is empty and unlocked some seconds later is
    a dead trainer's."""
    return frozenset(name for name in _segments(paths, "program") if not _size(name))


def reclaim_programs(paths: RuntimePaths, *, empty: Container[str] | None = None) -> None:
    """Unlinks programs of trainers that died before they handed them over. While clients may come, of the empty ones
    only those in `empty`: one that was made just now is about to be locked."""
    reclaimed = []
    for name in _segments(paths, "program"):
        fd = _lock(name)
        if fd < 0:
            continue
        if empty is None or name in empty or os.fstat(fd).st_size:
            with contextlib.suppress(OSError):
                unlink(name)
                reclaimed.append(name)
        os.close(fd)
    _log_reclaimed(reclaimed)


def _log_reclaimed(names: list[str]) -> None:
    if names:
        log.info("reclaimed", extra={"fields": {"segments": names}})


def _segments(paths: RuntimePaths, kind: str, directory: str = SHARED_MEMORY) -> list[str]:
    prefix = f"{SEGMENT_PREFIX}{paths.instance}-{kind}-"
    try:
        return sorted("/" + name for name in os.listdir(directory) if name.startswith(prefix))
    except OSError as error:
        log.warning("not looked at", extra={"fields": {"directory": directory, "why": error.strerror}})
        return []


def _size(name: str) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(SHARED_MEMORY + name).st_size
    return -1


def _lock(name: str, directory: str = SHARED_MEMORY) -> int:
    """Returns a descriptor of our own segment `name`, with the daemon's lock on it; -1 when another process has
    that."""
    try:
        fd = os.open(directory + name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1
    if os.fstat(fd).st_uid == os.geteuid() and try_lock(fd, DAEMON_LOCK_OFFSET):
        return fd
    os.close(fd)
    return -1
