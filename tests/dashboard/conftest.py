"""A daemon with its dashboard, and a browser."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Daemon, running_daemon
from tests.dashboard.browser import Browser, browsing, missing


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with running_daemon(tmp_path) as found:
        yield found


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    why = missing()
    if why and os.environ.get("CI") != "true":
        pytest.skip(why)
    assert not why, why
    with browsing(tmp_path_factory.mktemp("browser")) as found:
        yield found


@contextlib.contextmanager
def dashboard(daemon: Daemon, *options: str) -> Iterator[tuple[str, int]]:
    """The URL of a dashboard, and the pid of its process."""
    command = [sys.executable, "-m", "prefetchd", "dashboard", *options]
    with subprocess.Popen(command, env=daemon.environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == 0
