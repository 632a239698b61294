"""All batches of two sets of loaders, epoch after epoch; and one example as a program, with either loader."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from prefetchd_client import PrefetchLoader
from torch.utils.data import DataLoader

from tests.compatibility.comparing import differences

ROOT = Path(__file__).parents[2]
EPOCHS = 2


def assert_same_batches(theirs: dict[str, DataLoader[Any]], ours: dict[str, Any]) -> None:
    """Down to types, strides and bytes. The loaders are closed then."""
    assert list(theirs) == list(ours)
    for name, loader in ours.items():
        assert type(loader) is PrefetchLoader
        with loader:
            for epoch in range(EPOCHS):
                expected, found = list(theirs[name]), list(loader)
                assert len(found) == len(loader) > 0
                told = differences(expected, found)
                assert not told, f"{name}, epoch {epoch}: " + "\n".join(told)


def output_of(example: str, daemon: Any, *arguments: str) -> str:
    command = [sys.executable, "-m", f"examples.{example}", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=daemon.environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout
