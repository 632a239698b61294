"""What a daemon finds when it starts: segments of predecessors on the same socket."""

from __future__ import annotations

import logging
import os

from prefetchd.daemon.resources import SHARED_MEMORY
from prefetchd.ring.segment import unlink
from prefetchd.wire.file_locks import try_lock
from prefetchd.wire.runtime_paths import SEGMENT_PREFIX, RuntimePaths
from prefetchd.wire.segment_layout import DAEMON_LOCK_OFFSET

log = logging.getLogger("prefetchd")


def reclaim(paths: RuntimePaths) -> list[str]:
    """Unlinks the ring and program segments of this socket that no living process has locked; their names.

    A client holds the lock on a program that it is about to hand over.
    """
    reclaimed = []
    prefix = f"{SEGMENT_PREFIX}{paths.instance}-"
    for entry in os.scandir(SHARED_MEMORY):
        if not entry.name.startswith((prefix + "ring-", prefix + "program-")):
            continue
        try:
            fd = os.open(entry.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(fd).st_uid == os.geteuid() and try_lock(fd, DAEMON_LOCK_OFFSET):
                unlink("/" + entry.name)
                reclaimed.append(entry.name)
        finally:
            os.close(fd)
    if reclaimed:
        log.info("reclaimed", extra={"fields": {"segments": reclaimed}})
    return reclaimed
