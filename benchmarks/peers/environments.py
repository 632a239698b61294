"""This module makes the venvs of the contestants, each with the packages that its file in requirements/ pins.

torch is several GB with its CUDA libraries, so there is one venv "base" that has it, and each other one has a .pth file
that names base's packages behind its own: pip and Python find them there, and a package of the venv's own goes before.
prefetchd itself is run from this checkout.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = Path(__file__).with_name("requirements")
BASE = "base"
PINNED = ".pinned"


class NotSetUpError(Exception):
    """Raised where a venv is not there, or has other versions than its file pins."""


def cache_directory() -> Path:
    """Returns where venvs, data and results lie."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "prefetchd" / "peers"


def names() -> list[str]:
    """Returns the names of all venvs, base first."""
    found = sorted(path.stem for path in REQUIREMENTS.glob("*.txt"))
    return sorted(found, key=lambda name: name != BASE)


def python_of(name: str) -> Path:
    """Returns the venv's interpreter. Raises NotSetUpError."""
    place = cache_directory() / name
    stamp = place / PINNED
    if not stamp.exists() or stamp.read_text() != _digest(name):
        raise NotSetUpError(
            f"{place} does not have what requirements/{name}.txt pins: python -m benchmarks.peers setup"
        )
    return place / "bin" / "python"


def set_up(wanted: Iterable[str], say: Callable[[str], None]) -> None:
    """Makes those venvs that are not as they should be, and says what it does. Takes minutes, a package index and some
    12 GB. Raises subprocess.CalledProcessError with pip's own words before it."""
    todo = [name for name in names() if name == BASE or name in set(wanted)]
    for number, name in enumerate(todo, 1):
        began_s = time.monotonic()
        try:
            python_of(name)
        except NotSetUpError:
            say(f"[{number}/{len(todo)}] {name}: installing into {cache_directory() / name}")
            _make(name)
            say(f"[{number}/{len(todo)}] {name}: {time.monotonic() - began_s:.0f} s")
        else:
            say(f"[{number}/{len(todo)}] {name}: is there")


def _make(name: str) -> None:
    place = cache_directory() / name
    subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
    if name != BASE:
        (_packages(place) / "base.pth").write_text(f"{_packages(cache_directory() / BASE)}\n")
    install = [str(place / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*install, "-r", str(REQUIREMENTS / f"{name}.txt")], check=True)
    (place / PINNED).write_text(_digest(name))


def _packages(place: Path) -> Path:
    return next((place / "lib").glob("python*")) / "site-packages"


def _digest(name: str) -> str:
    """Returns what tells whether a venv is as it should be: it depends on base's packages too."""
    texts = [(REQUIREMENTS / f"{each}.txt").read_bytes() for each in (BASE, name)]
    return hashlib.sha256(b"\0".join(texts)).hexdigest()
