"""format_duration writes seconds for people."""

from __future__ import annotations


def format_duration(seconds: float) -> str:
    """Returns milliseconds below a second, else seconds, in two or three digits."""
    return f"{seconds:.1f} s" if seconds >= 10 else f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
