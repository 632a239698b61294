"""docs/batch-files.md is followed from its top to its bottom, in one directory."""

from __future__ import annotations

import pytest

from tests.documents.conftest import run_program, run_shell
from tests.documents.not_run import RIGHTS, reason_for
from tests.documents.pages import blocks

PAGE = "docs/batch-files.md"
BLOCKS = [block for block in blocks() if block.page == PAGE]


def test_it_is_followed(daemon, fresh):
    pytest.importorskip("safetensors")
    directory = fresh(PAGE)
    said = []
    for block in BLOCKS:
        if block.language == "toml":
            (directory / "streams.toml").write_text(block.text)
        elif reason_for(block) == RIGHTS:
            # "a directory of your own will do"
            (directory / "ram").mkdir(mode=0o700)
        elif block.language == "sh":
            said.append(run_shell(block.text, directory, daemon).stdout)
        else:
            said.append(run_program(block.text, directory, daemon).stdout)
    shell, pytorch, numpy, client = said
    assert "streams.toml: good; it declares 1 stream" in shell
    assert pytorch.splitlines()[-1] == numpy.splitlines()[-1] == "20 batches"
    assert client == ""
    assert [block.language for block in BLOCKS] == ["toml", "sh", "sh", "python", "python", "python"]
