"""What the README shows works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.executed

README = Path(__file__).parents[2] / "README.md"


def test_the_loop_of_the_readme_runs(daemon, tmp_path):
    loop = re.search(r"<!-- this loop is run by tests/scenario/test_readme.py -->\n```python\n(.*?)```", _text(), re.S)
    assert loop is not None
    script = tmp_path / "train.py"
    script.write_text(loop.group(1) + '\nprint("finished", loader.stats()["yielded"])\n')
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("finished 48\n")
    assert len(loop.group(1).splitlines()) <= 15


def test_its_links_and_verbs_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", _text()):
        assert (README.parent / target).exists(), target
    for verb in re.findall(r"`prefetchd (\w+)`", _text()):
        subprocess.run([sys.executable, "-m", "prefetchd", verb, "--help"], check=True, capture_output=True, timeout=60)


def _text() -> str:
    return README.read_text("utf-8")
