"""A daemon for all programs of this directory, and the marker that lets a fast run leave them out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Daemon, running_daemon

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks them all, before `-m` chooses."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.strangers)
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="package")
def strangers_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as found:
        yield found
