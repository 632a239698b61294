"""One daemon for all programs, whose rings outlive a program: its second run finds what the first has left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import Daemon, running_daemon


@pytest.fixture(scope="package")
def fuzzed_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as daemon:
        daemon.start("--linger-clean", "20")
        yield daemon
