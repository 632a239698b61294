"""Parses and formats sizes as people write them."""

from __future__ import annotations

import re

from prefetchd.wire.errors import CallerError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
_UNITS |= {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")


def parse_bytes(text: str, knob: str) -> int:
    """Returns the bytes that "4GiB", "1.5 GB" or "4096" means. Raises CallerError that names `knob`."""
    found = _WRITTEN.fullmatch(text)
    if found is None or found[2].upper() not in _UNITS:
        raise CallerError(f"{knob}={text!r}; allowed: bytes, as in '4GiB', '500MB' or '4096'")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def format_bytes(size: float) -> str:
    """Returns `size` in the unit that leaves one to four digits before the point."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
