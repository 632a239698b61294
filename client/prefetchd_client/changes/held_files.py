"""Watch the data files that a program has open or mapped for reading, where its workers stay the same over all
epochs."""

from __future__ import annotations

from collections.abc import Mapping

from prefetchd_client.fingerprint.live_state import FileStamp, stamp_of


class HeldFiles:
    """Remember the stamps of files, by path or descriptor, and tell whether one of them has changed."""

    def __init__(self, stamps: Mapping[str | int, FileStamp] | None = None) -> None:
        self._stamps: dict[str | int, FileStamp | None] = dict(stamps or {})

    def have_changed(self) -> bool:
        """Return True when a file is not what it was when this was asked last. Takes some microseconds a file."""
        now = {file: _stamp(file) for file in self._stamps}
        changed, self._stamps = now != self._stamps, now
        return changed


def _stamp(file: str | int) -> FileStamp | None:
    try:
        return stamp_of(file)
    except OSError:
        return None
