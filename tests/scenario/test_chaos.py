"""Thirty kills of anything, at kill points and at random times: every batch comes, once and whole."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_thirty_kills():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.chaos", "--kills", "30", "--seed", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"^(\d+) kills in .*; (\d+) batches,", done.stdout, re.M)
    assert found is not None
    assert int(found[1]) >= 30
    assert int(found[2]) >= 9 * 30
    asked = re.search(r"\(of (\d+) that were ready when a daemon died;", done.stdout)
    assert asked is not None
    assert int(asked[1]) >= 1
