"""How many examples property tests try: PREFETCHD_TESTS_BUDGET multiplies the number that each one names.

`make test-fast` sets 0.2, `make test` leaves it at 1, and a night may have 20.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import settings

VARIABLE = "PREFETCHD_TESTS_BUDGET"
FEWEST = 5


def tries(count: int, **others: Any) -> settings:
    """Settings of a test that tries `count` examples with the usual budget, however long each takes."""
    return settings(
        deadline=None, max_examples=max(FEWEST, round(count * float(os.environ.get(VARIABLE, 1)))), **others
    )
