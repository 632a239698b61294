"""The pages that users follow, and every block of code in them, as CommonMark has it: markdown-it comes with rich."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
GIVEN = Path(__file__).with_name("given")
"""What a page says that its reader has: by the page's name, a directory of such files."""

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "systemd/README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md")),
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "website" / "start").glob("*.md")),
)


@dataclasses.dataclass(frozen=True)
class Block:
    """One block of code: fenced, or indented (then it has no language)."""

    page: str
    line: int
    language: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines, without what stands before and behind them, or in a comment behind two spaces."""
        return [line.partition("  #")[0].strip() for line in self.text.splitlines()]

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@functools.cache
def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks_of(text: str, page: str = "") -> list[Block]:
    """All blocks of `text`, also within lists and quotations."""
    return [
        Block(page, (token.map or [0])[0] + 1, token.info.strip(), token.content)
        for token in MarkdownIt("commonmark").parse(text)
        if token.type in ("fence", "code_block")
    ]


@functools.cache
def blocks() -> tuple[Block, ...]:
    return tuple(block for page in PAGES for block in blocks_of(text_of(page), page))


def blocks_in(*languages: str) -> list[Block]:
    return [block for block in blocks() if block.language in languages]


def given_directory(page: str) -> Path:
    return GIVEN / Path(page).with_suffix("").as_posix().replace("/", "-")
