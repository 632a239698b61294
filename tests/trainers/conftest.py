"""A daemon for all trainers of this run, and no hub that anybody is asked on the network."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.conftest import Daemon, running_daemon

os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="package")
def trainers_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running_daemon(tmp_path_factory.mktemp("daemon")) as found:
        yield found
