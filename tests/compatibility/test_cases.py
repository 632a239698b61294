"""Each case with torch's DataLoader and with PrefetchLoader: equal, or different as it stands there with its reason."""

from __future__ import annotations

import pytest

from tests.compatibility.registry import ALL_CASES
from tests.compatibility.running import run_case


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda case: f"{case.group}-{case.name}")
@pytest.mark.usefixtures("compatibility_daemon")
def test_both_loaders_do_the_same(case):
    if case.missing:
        pytest.skip(f"{case.missing} is not installed")
    unexpected = run_case(case).unexpected
    assert not unexpected, "DataLoader's and ours:\n" + "\n".join(unexpected)
