"""Each program of a page runs as it stands, by itself: with no other block before it."""

from __future__ import annotations

import pytest
import torch

from tests.documents.conftest import run_program
from tests.documents.not_run import GPU, reason_for
from tests.documents.pages import Block, blocks_in

STORIES = {"docs/batch-files.md"}
"""Pages whose blocks need what those before them have made; each has a file of tests."""
PROGRAMS = [block for block in blocks_in("python") if block.page not in STORIES and reason_for(block) in (None, GPU)]

ELSEWHERE = [block for block in PROGRAMS if 'device="cuda"' in block.text and ".cuda" not in block.text]
"""Those that run on any device: all but the one of CUDA's graphs."""


@pytest.mark.parametrize("block", PROGRAMS, ids=str)
def test_it_runs(shared_daemon, fresh, block: Block):
    if reason_for(block) == GPU and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    if "skorch" in block.text:
        pytest.importorskip("skorch")
    if "SampleCache" in block.text:
        pytest.importorskip("tensordict")
    done = run_program(block.text, fresh(block.page), shared_daemon)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("block", ELSEWHERE, ids=str)
def test_with_another_device_it_runs_without_a_gpu(shared_daemon, fresh, block: Block):
    run_program(block.text.replace('device="cuda"', 'device="cpu"'), fresh(block.page), shared_daemon)
