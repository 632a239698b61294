"""Compares the files that a node has read for a batch with the files of the same paths on this machine.

The bridge does this before it writes the batch, as most batches of a node are not made here once more. The rules:

1. A file of another size differs. A file of the same size and the same time of change is taken to be the same.
2. A file of the same size and another time of change is `doubtful`: a copy need not keep the time. Both machines take
   its digest, once as long as both times stay what they are.
3. A file that is not on this machine is not compared: the program may have made it on the node.
4. A file that this machine has changed lately says nothing about the node: the batch is made here, and the node stays.

Blocks on the file system, so it runs in threads of its own.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Sequence

import xxhash

from prefetchd.workers.opened_files import Stamp, files_in, pack_files, stamp_of

RECENT_S = 60.0
"""Seconds for which caches of a network's file system may show a node what a file was before."""
WHOLE_BYTES = 4 << 20
"""Maximum bytes of a file that are digested whole."""
BLOCK_BYTES = 64 << 10
BLOCKS = 64
"""The blocks of a larger file that are digested, at even distances, the first and the last one among them."""
MOST_KNOWN = 1 << 20
TIMES_DIFFER = "its time of change and its bytes"


@dataclasses.dataclass(frozen=True)
class Difference:
    """A file that is not the same on both machines, and what differs."""

    path: str
    what: str
    is_recent: bool = False


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The result for one batch: the first difference, if there is one; the paths whose digests decide; and the files as
    they are here, packed as OpenedFiles.take() does."""

    difference: Difference | None = None
    doubtful: tuple[bytes, ...] = ()
    opened_here: bytes = b""


class DataCheck:
    """Compares nodes' files with those of this machine. For use by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By path: the node's and this machine's time of change of files whose digests were equal.
        self._equal: dict[bytes, tuple[int, int]] = {}

    def compare(self, opened: bytes, digests: Sequence[int] | None = None) -> Comparison:
        """Compare the files in `opened`. `digests` are the node's, of the doubtful paths of a former call."""
        here: list[tuple[bytes, Stamp]] = []
        doubtful: dict[bytes, tuple[int, int]] = {}
        for path, (_, their_bytes, their_ns) in files_in(opened):
            stamp = stamp_of(path)
            if stamp is None:
                continue
            _, our_bytes, our_ns = stamp
            here.append((path, stamp))
            if our_bytes != their_bytes:
                what = f"its size: {our_bytes} bytes here, {their_bytes} bytes there"
                return Comparison(Difference(os.fsdecode(path), what, _is_recent(our_ns)))
            if our_ns != their_ns and self._equal.get(path) != (their_ns, our_ns):
                doubtful[path] = their_ns, our_ns
        if not doubtful:
            return Comparison(opened_here=pack_files(here))
        if digests is None or len(digests) != len(doubtful):
            return Comparison(doubtful=tuple(doubtful))
        for (path, times), theirs in zip(doubtful.items(), digests):
            if digest_of(path) != theirs:
                return Comparison(Difference(os.fsdecode(path), TIMES_DIFFER, _is_recent(times[1])))
            with self._lock:
                if len(self._equal) >= MOST_KNOWN:
                    self._equal.clear()
                self._equal[path] = times
        return Comparison(opened_here=pack_files(here))


def digest_of(path: bytes) -> int:
    """Return the digest of the file's bytes, of parts of it where it has more than WHOLE_BYTES; 0 when it cannot be
    read. Both machines must take it the same way."""
    digest = xxhash.xxh3_64()
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= WHOLE_BYTES:
                digest.update(file.read(WHOLE_BYTES))
            else:
                for block in range(BLOCKS):
                    digest.update(os.pread(file.fileno(), BLOCK_BYTES, (size - BLOCK_BYTES) * block // (BLOCKS - 1)))
    except OSError:
        return 0
    return digest.intdigest() or 1


def _is_recent(changed_ns: int) -> bool:
    return time.time_ns() - changed_ns < RECENT_S * 1e9
