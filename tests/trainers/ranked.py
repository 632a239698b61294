"""Runs a module as two ranks under torchrun and reads what each has written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def run_two_ranks(module: Any, daemon: Any, directory: Path) -> list[Any]:
    """What the two wrote as RANK.json in `directory`, which is their one argument."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    command += ["-m", module.__name__, str(directory)]
    environment = {**daemon.environment, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr[:4000]
    return [json.loads((directory / f"{rank}.json").read_text()) for rank in (0, 1)]
