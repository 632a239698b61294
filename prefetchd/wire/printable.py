"""Makes text that others wrote safe for a terminal: names, paths and errors that may hold escape sequences. Pure.

A terminal obeys what it is sent: it moves the cursor, changes its title, answers. So control characters, and those that
turn text around, are shown by their numbers and never sent.
"""

from __future__ import annotations

import re
import unicodedata

_SUSPECT = re.compile(r"[^\x20-\x7e]")
_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp", "Co", "Cn")
"""The Unicode categories that are hidden: controls, formats such as a change of direction, halves of characters, ends
of lines."""


def one_line(text: str) -> str:
    """Returns `text` without a control character in it: each is shown as \\x1b or \\u202e."""
    return _SUSPECT.sub(_shown, text)


def printable(text: str) -> str:
    """Returns text of several lines without other control characters: their ends and tabs stay."""
    return "\n".join(one_line(line.replace("\t", "    ")) for line in text.split("\n"))


def _shown(found: re.Match[str]) -> str:
    each = found[0]
    if unicodedata.category(each) not in _HIDDEN:
        return each
    code = ord(each)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"
