"""This module looks for damage among a JPEG's markers, also behind the rows that a decoder of regions reads.

libjpeg raises for a marker that does not belong where it stands; for damaged pixels it only warns. A decoder that stops
at a region's last row never comes to the markers behind it.
"""

from __future__ import annotations

import re

_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""A marker among compressed pixels: 0xff 0x00 is a byte of them, 0xd0 to 0xd7 restart the decoder, 0xff fills."""

_FILL = 0xFF
_START_OF_SCAN, _END_OF_IMAGE = 0xDA, 0xD9
_ALL_AT_ONCE = (0xC2,)
"""Frames of which a decoder reads the whole file before the first row: progressive ones. It finds all damage itself."""
_FRAMES = (0xC0, 0xC1, *_ALL_AT_ONCE)


def is_whole(data: memoryview) -> bool:
    """True when the first scan is followed by the end of the image, or the decoder reads all scans anyway."""
    found = _first_scan(data)
    if found is None:
        return False
    frame, begin = found
    if frame in _ALL_AT_ONCE:
        return True
    marker = _MARKER.search(data, begin)
    return marker is not None and data[marker.end() - 1] == _END_OF_IMAGE


def _first_scan(data: memoryview) -> tuple[int, int] | None:
    """Returns the kind of the frame, and where the first scan's segment begins; None when the header is damaged."""
    frame, at = 0, 2
    while at + 4 <= len(data) and data[at] == _FILL:
        marker = data[at + 1]
        if marker == _FILL:
            at += 1
            continue
        if marker == _START_OF_SCAN:
            return (frame, at + 2) if frame else None
        if marker in _FRAMES:
            frame = marker
        at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    return None
