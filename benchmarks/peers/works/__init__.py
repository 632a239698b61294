"""This package has the works: each file says what it is, of what data, and what is measured.

Each has WORK, and `measure(job)`, which runs in the contestant's process and returns its measures by name.
"""

from __future__ import annotations

import importlib
from types import ModuleType

NAMES = (
    "jpeg_bytes",
    "jpeg_floats",
    "prepared",
    "tokens",
    "first_batch",
    "rerun",
    "validation",
    "steps",
    "two_trainers",
)
"""The order of the tables."""


def work_module(name: str) -> ModuleType:
    return importlib.import_module(f"benchmarks.peers.works.{name}")
