"""When gather_for_metrics() would cut off the wrong samples: what prepare() warns of, against what it would do."""

from __future__ import annotations

import pytest

pytest.importorskip("accelerate")

from prefetchd_client.integrations.accelerate import _are_repeats_hidden


def gathered(samples, ranks, rows):
    """All that the ranks' batches give, the last cut as accelerate cuts it."""
    shares = [range(rank, -(-samples // ranks) * ranks, ranks) for rank in range(ranks)]
    found = []
    for first in range(0, len(shares[0]), rows):
        found.append([place % samples for share in shares for place in share[first : first + rows]])
    rest = samples % (rows * ranks)
    if rest:
        found[-1] = found[-1][:rest]
    return sorted(place for batch in found for place in batch)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_it_warns_where_samples_would_be_lost(ranks):
    for rows in (1, 2, 3, 4):
        for samples in range(ranks, 60):
            lost = gathered(samples, ranks, rows) != list(range(samples))
            assert _are_repeats_hidden(samples, ranks, rows) == lost, (samples, rows)
