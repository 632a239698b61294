"""What the daemon's process holds: it lives for long, beside trainers that need the memory."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.executed


def test_the_daemon_imports_no_torch():
    code = "import sys, prefetchd.cli.main, prefetchd.daemon.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
