"""default_stream_name names a stream that nobody has named: by its script and the place of its loader in that."""

from __future__ import annotations

import hashlib
import itertools
import os
import sys
import threading
import weakref

from prefetchd_client.loader.ranks import process_rank

MOST_LETTERS = 160
"""Of a script's name. A stream's may have 200, with the loader's number and the rank."""

_lock = threading.Lock()
_taken: set[int] = set()


class Ordinal:
    """Takes the lowest `number` that no loader of this process has: one that is made in another's place comes to have
    its name. It is free again when this object is gone, or gives it back."""

    def __init__(self) -> None:
        with _lock:
            self.number = next(each for each in itertools.count() if each not in _taken)
            _taken.add(self.number)
        # Called once, however often it is asked for.
        self.give_back = weakref.finalize(self, _taken.discard, self.number)
        self.give_back.atexit = False


def default_stream_name(ordinal: int) -> str:
    """Returns a name of script, ordinal and the process's rank: the same in the next run of a script that makes its
    loaders in the same order."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    script = _fit("/".join(os.path.abspath(path).split(os.sep)[-2:])) if path else "interactive"
    rank, _ = process_rank()
    return f"{script}:{ordinal}@{rank}" if rank else f"{script}:{ordinal}"


def _fit(script: str) -> str:
    """Returns what can be part of a stream's name: the script itself, where that is possible."""
    fit = "".join(each if each.isprintable() else "?" for each in script)[-MOST_LETTERS:]
    if fit == script:
        return script
    return f"{fit}~{hashlib.blake2b(os.fsencode(script), digest_size=4).hexdigest()}"
