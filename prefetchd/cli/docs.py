"""Implements `prefetchd docs`: shows the pages of the documentation that come with the package."""

from __future__ import annotations

import difflib
import os
from importlib.resources import files
from pathlib import Path

import click

from prefetchd.wire.printable import one_line

PAGES_BESIDE = ("docker", "systemd")
"""Directories of the repository whose README.md is a page."""


@click.command("docs")
@click.argument("page", required=False)
@click.option("--path", "only_path", is_flag=True, help="Print where the page lies, or all of them, and nothing else.")
def command(page: str | None, only_path: bool) -> None:
    """Print a PAGE of the documentation, as Markdown; without one, list all pages.

    \b
    prefetchd docs configuration | less
    $EDITOR $(prefetchd docs --path status)

    They are the pages of this very version. Why it is built as it is, docs/decisions/, is in the source only.

    Exit code: 0 shown, 1 there is no such page.
    """
    pages = documentation()
    if not pages:
        raise click.ClickException("this installation has no documentation: whoever packed it has left it out")
    if page is None:
        _list(pages, only_path=only_path)
        return
    # A page's path in the repository names it, too: that is how other texts refer to it.
    name = page.removeprefix("docs/").removesuffix("/README.md").removesuffix(".md")
    if name not in pages:
        near = difflib.get_close_matches(name, pages, n=1)
        hint = f"did you mean {near[0]!r}? One of " if near else ""
        raise click.ClickException(f"no page {page!r}; allowed: {hint}{', '.join(pages)}")
    # A page has its last newline.
    click.echo(os.fspath(pages[name]) if only_path else pages[name].read_text("utf-8"), nl=only_path)


def documentation() -> dict[str, Path]:
    """Finds the pages by their names: in the package or, in a checkout, beside it."""
    package = Path(str(files("prefetchd")))
    if (package / "docs").is_dir():
        found = [*(package / "docs").glob("*.md"), *(package / "docs").glob("*/README.md")]
    else:
        beside = [package.parent / each / "README.md" for each in PAGES_BESIDE]
        found = [*(package.parent / "docs").glob("*.md"), *filter(Path.exists, beside)]
    return dict(sorted((path.parent.name if path.stem == "README" else path.stem, path) for path in found))


def _list(pages: dict[str, Path], *, only_path: bool) -> None:
    if only_path:
        for path in pages.values():
            click.echo(one_line(os.fspath(path)))
        return
    width = max(map(len, pages))
    for name, path in pages.items():
        click.echo(f"{name:{width}}  {_title(path)}")
    click.echo(one_line(f"They are in {next(iter(pages.values())).parent}; `prefetchd docs PAGE` prints one."))


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as lines:
        return next((line.removeprefix("# ").strip() for line in lines if line.startswith("# ")), "")
