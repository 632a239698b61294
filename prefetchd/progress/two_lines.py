"""Reads and writes the progress file: exactly two lines, epoch and batch, both decimal and counted from 0. Pure.

    3
    4567

It is written by programs that know nothing of us, so spaces around the numbers and other ends of lines are allowed, and
the last line may lack its end. It must be short: nobody's numbers have more than LONGEST_BYTES.
"""

from __future__ import annotations

import re

from prefetchd.wire.stream_spec import POSITION_LIMIT, Position

LONGEST_BYTES = 256

_TEXT = re.compile(rb"[ \t]*(\d{1,19})[ \t]*\r?\n[ \t]*(\d{1,19})[ \t]*(\r?\n)?\s*")


def parse(content: bytes) -> tuple[Position, bool] | str:
    """Parses the file's content. Returns (position, whether the last line has its end), or why it cannot be read."""
    if not content.strip():
        return "it is empty"
    found = _TEXT.fullmatch(content) if len(content) <= LONGEST_BYTES else None
    if found is None:
        text = content[:40].decode("utf-8", "replace")
        return f"it holds {text!r}{'...' if len(content) > 40 else ''}; allowed: two lines, epoch and batch, from 0"
    epoch, batch = int(found[1]), int(found[2])
    if epoch >= POSITION_LIMIT or batch >= POSITION_LIMIT:
        return f"it holds numbers of {POSITION_LIMIT} and more"
    return (epoch, batch), found[3] is not None


def written(position: Position) -> bytes:
    """Returns the file's content for `position`."""
    return b"%d\n%d\n" % position
