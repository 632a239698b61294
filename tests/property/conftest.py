"""Give a property that is broken the time to find its shortest example: Hypothesis takes up to five minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

WITHIN_S = 480


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(WITHIN_S))
