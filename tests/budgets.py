"""How many examples property tests try: PREFETCHD_TESTS_BUDGET multiplies the number that each one names.

`make test-slow` leaves it at 1, `make test` and `make test-fast` set less, and a night may have 20.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

VARIABLE = "PREFETCHD_TESTS_BUDGET"
FEWEST = 5


def budget(count: int) -> int:
    """How many are tried of a test that tries `count` with the usual budget."""
    return max(FEWEST, round(count * float(os.environ.get(VARIABLE, 1))))


def tries(count: int, **others: Any) -> settings:
    """Settings of a test that tries `count` examples with the usual budget, however long each takes."""
    return settings(deadline=None, max_examples=budget(count), **others)
