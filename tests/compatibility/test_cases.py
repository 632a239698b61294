"""Each case with torch's DataLoader and with PrefetchLoader: equal, or different for the reason that stands there."""

from __future__ import annotations

import pytest

from tests.compatibility.registry import ALL_CASES
from tests.compatibility.running import run_case


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: f"{case.group}-{case.name}")
@pytest.mark.usefixtures("compatibility_daemon")
def test_both_loaders_do_the_same(case):
    if case.missing:
        pytest.skip(f"{case.missing} is not installed")
    verdict = run_case(case)
    if case.reason:
        assert verdict.differences, f"they are equal: take the reason away ({case.reason})"
    else:
        assert not verdict.differences, "DataLoader's and ours:\n" + "\n".join(verdict.differences)
