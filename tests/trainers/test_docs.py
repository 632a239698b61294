"""What docs/trainers.md shows runs as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "trainers.md"
PROGRAMS = {
    heading: re.findall(r"```python\n(.*?)```", section, re.S)
    for heading, section in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE.read_text("utf-8"), re.S | re.M)
}
WITHOUT_PROGRAM = ("Loggers",)
NEEDS = {"Lightning": "lightning", "HF Accelerate": "accelerate", "HF Trainer": "transformers"}


def test_each_trainer_has_a_program():
    found = {heading: len(programs) for heading, programs in PROGRAMS.items() if heading not in WITHOUT_PROGRAM}
    assert found == dict.fromkeys(NEEDS, 1)


@pytest.mark.parametrize("heading", NEEDS)
def test_the_program_runs(trainers_daemon, tmp_path, heading):
    pytest.importorskip(NEEDS[heading])
    script = tmp_path / "train.py"
    script.write_text(PROGRAMS[heading][0])
    command = [sys.executable, str(script)]
    environment = {**trainers_daemon.environment, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
