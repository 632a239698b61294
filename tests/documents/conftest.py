"""A reader's fresh directory, and a shell in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Daemon
from tests.documents.pages import given_directory

ENDS_WITHIN_S = 100
Run = subprocess.CompletedProcess[str]


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a directory with nothing but what a page says that its reader has."""

    def make(page: str) -> Path:
        directory = tmp_path / "job"
        if given_directory(page).exists():
            shutil.copytree(given_directory(page), directory, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            directory.mkdir()
        return directory

    return make


def run_program(text: str, directory: Path, daemon: Daemon) -> Run:
    """Runs a block of Python as it stands, as a file of a process of its own."""
    script = directory / "program.py"
    script.write_text(text)
    command = [sys.executable, script.name]
    environment = {name: value for name, value in daemon.environment.items() if name != "PYTHONPATH"}
    return _finished(subprocess.run(command, cwd=directory, env=environment, **_CAPTURED))


def run_shell(text: str, directory: Path, daemon: Daemon) -> Run:
    """Runs a block of shell as it stands, in a shell that ends at the first command that fails, with the environment of
    this interpreter first in its PATH."""
    path = os.pathsep.join([str(Path(sys.executable).parent), daemon.environment.get("PATH", os.defpath)])
    environment = daemon.environment | {"PATH": path}
    return _finished(subprocess.run(["bash", "-eu", "-c", text], cwd=directory, env=environment, **_CAPTURED))


_CAPTURED = {"capture_output": True, "text": True, "check": False, "timeout": ENDS_WITHIN_S}


def _finished(done: Run) -> Run:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done
