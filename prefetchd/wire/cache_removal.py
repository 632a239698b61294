"""Removes sample caches, and what dead makers and removers of them have left: under another name first.

Whoever removes what a maker has left holds the maker's lock meanwhile, so that none is published half removed: a maker
that was about to take it finds its directory gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import uuid
from pathlib import Path

from prefetchd.wire.cache_directory import MAKER_LOCK_OFFSET, MARKS, is_fingerprint
from prefetchd.wire.file_locks import try_lock


def unused_name(directory: Path, what: str) -> Path:
    """Returns a name beside `directory`, for a cache that is being made (`what` is "new") or removed ("old")."""
    fingerprint = directory.name.partition(".")[0]
    return directory.with_name(f"{fingerprint}.{what}-{os.getpid():x}-{uuid.uuid4().hex[:8]}")


def remove_cache(directory: Path) -> None:
    """Removes the cache. Nobody finds it from now on; processes that use it go on with what they have mapped. Raises
    OSError."""
    hidden = unused_name(directory, "old")
    directory.rename(hidden)
    # Another process may tidy up at the same time.
    shutil.rmtree(hidden, ignore_errors=True)
    if hidden.exists():
        raise OSError(f"{hidden} cannot be removed whole")


def remove_leftovers(path: Path) -> int:
    """Removes what dead makers and removers have left in `path`. Returns how many directories these were."""
    found = 0
    with contextlib.suppress(FileNotFoundError):
        for each in list(path.iterdir()):
            fingerprint, _, what = each.name.partition(".")
            if not is_fingerprint(fingerprint) or not _is_own_directory(each):
                continue
            if what.startswith("new-"):
                found += _remove_unfinished(each)
            elif what.startswith("old-"):
                shutil.rmtree(each, ignore_errors=True)
                found += 1
    return found


def _is_own_directory(path: Path) -> bool:
    """Returns True for a directory of ours: what another user's dead makers have left is theirs, and a link is nobody's
    cache."""
    with contextlib.suppress(OSError):
        found = path.lstat()
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    return False


def _remove_unfinished(directory: Path) -> bool:
    """Removes what a maker has begun. Returns False when that maker lives, or has published it, or nobody can remove
    it."""
    try:
        # Its maker may not have come to making the marks.
        fd = os.open(directory / MARKS, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError:
        return False
    try:
        if not try_lock(fd, MAKER_LOCK_OFFSET):
            return False
        remove_cache(directory)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
