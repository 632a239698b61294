"""What takes rights is run where they are given: in namespaces of its own, which end with the test."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documents.not_run import RIGHTS, reason_for
from tests.documents.pages import blocks
from tests.scenario.test_under_systemd import BEGIN, own_groups, run_in_namespaces

__all__ = ["own_groups"]


UNITS, UNINSTALL, RAM_DISK = (block for block in blocks() if reason_for(block) == RIGHTS)


def test_a_user_s_unit_is_installed_and_serves_as_the_page_says(own_groups):
    path = f'export PATH="{Path(sys.executable).parent}:$PATH"\n'
    steps = f"{UNITS.text}\nsystemctl --user stop prefetchd\n{UNINSTALL.text}\nls ~/.config/systemd/user\n"
    done = run_in_namespaces(f"{BEGIN}\n{path}set -eu\n{steps}", own_groups)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "enabled prefetchd.service" in done.stdout
    assert "healthy" in done.stdout
    assert "prefetchd.service" not in done.stdout.splitlines(), "nothing of it is left"


def test_the_ram_disk_is_mounted_as_the_page_says(tmp_path):
    # Who is root needs none.
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\nexec "$@"\n')
    sudo.chmod(0o700)
    own = ["unshare", "--mount", "--propagation", "private", "bash", "-eu", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*own, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no right to make namespaces")
    done = subprocess.run(
        [*own, f"{RAM_DISK.text}\nstat -f -c %T ram\nstat -c '%a %u' ram"],
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["tmpfs", "700", str(os.geteuid())]
    assert list((tmp_path / "ram").iterdir()) == []
