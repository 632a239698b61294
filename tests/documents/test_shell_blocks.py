"""What a page has its reader type into a shell works there, as it stands, with a daemon of its own."""

from __future__ import annotations

import re

import pytest

from tests.documents.conftest import run_shell
from tests.documents.not_run import reason_for
from tests.documents.pages import Block, blocks_in

STORIES = {"docs/batch-files.md", "README.md"}
"""Pages whose blocks need what those before them have made, or show what has run for long; each has a file of tests."""
SHELLS = [block for block in blocks_in("sh") if block.page not in STORIES and reason_for(block) is None]
CONSOLES = [block for block in blocks_in("console") if block.page not in STORIES]
SAYS = {
    "docs/dashboard.md": r"run\.html.*\n.*run\.json",
    "docs/reliability.md": r"daemon\.publish\.leased",
    "website/start/when-something-is-wrong.md": r"report\.html",
}
"""By page, what its shell's block must print."""
RUNNING = {"docs/dashboard.md", "website/start/when-something-is-wrong.md"}
"""Pages whose reader has a daemon."""


@pytest.mark.parametrize("block", SHELLS, ids=str)
def test_it_runs(daemon, fresh, block: Block):
    if block.page in RUNNING:
        daemon.start()
    done = run_shell(block.text, fresh(block.page), daemon)
    assert re.search(SAYS[block.page], done.stdout)


@pytest.mark.parametrize("block", CONSOLES, ids=str)
def test_the_command_says_what_is_shown_but_for_its_figures(daemon, fresh, block: Block):
    command, _, shown = block.text.removeprefix("$ ").partition("\n")
    done = run_shell(command, fresh(block.page), daemon)
    assert shape(done.stdout) == shape(shown)


def shape(said: str) -> list[str]:
    """Its lines: figures may differ, and what the page leaves out."""
    lines = [re.sub(r"\(.*\)", "(...)", re.sub(r"\d+(\.\d+)?", "0", line)).rstrip() for line in said.splitlines()]
    return [line for line in lines if line]
