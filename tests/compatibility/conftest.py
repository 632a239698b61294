"""One daemon for all cases."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.conftest import Daemon, running_daemon


@pytest.fixture(scope="package")
def compatibility_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """Its rings go with their loaders, and its workers are not nicer than DataLoader's."""
    with running_daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        daemon.start("--linger", "0", "--linger-clean", "0", "--nice", "0")
        yield daemon
        # Errors that DataLoader raised know its iterators, and these have workers.
        gc.collect()
