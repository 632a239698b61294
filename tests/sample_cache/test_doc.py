"""The program of docs/sample-cache.md runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensordict")
TEXT = (Path(__file__).parents[2] / "docs" / "sample-cache.md").read_text("utf-8")


def test_the_program_runs(daemon, tmp_path):
    program = re.search(r"tests/sample_cache/test_doc.py -->\n```python\n(.*?)```", TEXT, re.S)
    assert program is not None
    script = tmp_path / "train.py"
    asks = 'print(len(cache.missing()), validation.spec.equal_epochs, training.stats()["yielded"])'
    script.write_text(f"{program.group(1)}\n{asks}\n")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0 True 21\n"
