"""What `prefetchd status` imports: it is to answer at once."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.executed

HEAVY = ("torch", "numpy", "rich", "cloudpickle", "asyncio", "multiprocessing", "prefetchd.daemon")


@pytest.mark.parametrize("arguments", [["status"], ["status", "--json"], ["--help"]])
def test_nothing_heavy_is_imported(arguments, tmp_path):
    code = f"""
import sys
from prefetchd.cli.main import main
sys.argv = ["prefetchd", *{arguments!r}]
try:
    main()
except SystemExit:
    pass
print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)
"""
    environment = {"PREFETCHD_SOCKET": str(tmp_path / "d.sock"), "PYTHONPATH": ":".join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert done.stderr.strip() == "[]"
