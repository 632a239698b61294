"""The wheel has all that the source has: modules, the units, what says that they are typed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CLIENT = ROOT / "client"
PACKAGES = {"prefetchd": ROOT / "prefetchd"} | {name: CLIENT / name for name in ("prefetchd_client", "prefetchd_demo")}


def test_one_wheel_has_all_packages_and_the_units(tmp_path):
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    expected = {
        f"{name}/{file.relative_to(root).as_posix()}"
        for name, root in PACKAGES.items()
        for file in root.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    assert expected == {name for name in names if ".dist-info/" not in name}
    assert {"prefetchd/units/prefetchd.service", "prefetchd/units/prefetchd.socket"} <= names
    assert {"prefetchd/py.typed", "prefetchd_client/py.typed"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
