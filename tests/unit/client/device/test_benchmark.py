"""The benchmark of the way to a GPU, where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[4]


def test_without_a_gpu_it_says_so_and_measures_nothing():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.device", "--only", "correctness"],
        cwd=ROOT,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1, done.stderr
    told = f"There is no CUDA device here (torch {torch.__version__}): nothing was checked, nothing measured.\n"
    assert (done.stdout, done.stderr) == (told, "")
