"""Places that attacks of several files share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody can enter."""
    with tempfile.TemporaryDirectory(prefix="p", dir="/tmp") as directory:
        path = Path(directory)
        path.chmod(0o755)
        yield path


@pytest.fixture
def shared_directory(open_directory: Path) -> Path:
    """A directory as /tmp is: everybody may put something there."""
    path = open_directory / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path
