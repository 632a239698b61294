"""Compares this client's version with that of the prefetchd it was imported with, and with the daemon's.
Decision 0108 says which may meet.

To be imported before anything of prefetchd's but the package itself: another version may lack it, or have it otherwise.
"""

from __future__ import annotations

import os
import sys

import prefetchd
from prefetchd_client.caller_warnings import warn_caller

VERSION = "0.1.0"

OTHER_DAEMON = (
    "the daemon is prefetchd {}, this client {}: they understand each other, but batches are made and kept as that "
    "version does it. `prefetchd restart` starts a daemon of the version that is installed"
)

_met = {VERSION, ""}


def check_imported() -> None:
    """Raises ImportError when the package prefetchd that was imported is not of this version."""
    found = getattr(prefetchd, "__version__", None)
    if found == VERSION:
        return
    ours, theirs = os.path.dirname(os.path.abspath(__file__)), next(iter(prefetchd.__path__))
    told = f"prefetchd {found}" if found else "a directory named prefetchd without a version"
    raise ImportError(
        f"prefetchd_client {VERSION} in {ours} was imported with {told} in {theirs}; allowed: the same version. Python "
        "takes each from the first directory of sys.path that has it. Start Python outside of clones of prefetchd, "
        "take such a clone out of PYTHONPATH, or install it: pip install -e CLONE",
        name="prefetchd",
        path=theirs,
    )


def meet_daemon(software: str, *, is_first: bool) -> None:
    """Says that the daemon is of another version, once for each version: as a warning to whoever makes a loader, if
    this is the `is_first` daemon that it meets, else on stderr, as nobody must have a training ended by a warning."""
    if software in _met:
        return
    _met.add(software)
    # Imported here: check_imported() comes first.
    from prefetchd.wire.printable import one_line

    text = OTHER_DAEMON.format(one_line(software), VERSION)
    if is_first:
        warn_caller(text)
    else:
        print(f"prefetchd: {text}", file=sys.stderr)
