"""The files that docs/architecture.md says one batch passes."""

from __future__ import annotations

import re

from tests.unit.docs.draw import DOCS

HEADING = "### The files that it passes"


def walk() -> str:
    """The text of that part."""
    text = (DOCS / "architecture.md").read_text("utf-8")
    assert text.count(f"{HEADING}\n") == 1
    return text.split(f"{HEADING}\n")[1].split("\n#")[0]


def files_of_the_walk() -> list[str]:
    """Those that it links to, as paths below the root of the project."""
    return re.findall(r"^\[[\w/]+\]: \.\./(\S+)$", walk(), re.M)
