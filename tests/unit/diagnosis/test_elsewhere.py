"""What other machines would bring, where workers compute and there are no more CPUs; and where nothing is said."""

from __future__ import annotations

import pytest

from tests.unit.diagnosis.pipelines import Pipeline
from tests.unit.diagnosis.test_verdict import always, verdict

COMPUTES = Pipeline(2, 16, always(0.1), always(0.02), cpus=2, computing=1.0)
# 25 s of filling a GB: ten times what receiving costs.
DEAR = {"fill_s": 25.0, "produced_bytes": 10**9, "order": "shuffle", "store": "shm", "remote": None}


def test_as_many_cpus_again_bring_what_receiving_leaves_of_them():
    assert "2 CPUs of other machines would make 1.9 times as much (remote_workers)" in verdict(COMPUTES, **DEAR).text


def test_the_less_it_costs_to_make_a_batch_the_less_they_bring():
    assert "would make 1.6 times" in verdict(COMPUTES, **DEAR | {"fill_s": 6.25}).text


@pytest.mark.parametrize(
    "changes",
    [
        {"fill_s": 5.4},
        {"fill_s": 0.1},
        {"order": "iterable"},
        {"store": "files"},
        {"remote": {"ready": 2, "workers": 2, "bridge": "open", "why_not": ""}},
        {"remote": {"ready": 0, "workers": 0, "bridge": "opening", "why_not": ""}},
        {"remote": {"ready": 0, "workers": 0, "bridge": "none", "why_not": "Ray is not installed"}},
    ],
    ids=["cheap", "not known yet", "shards", "files", "there already", "starting", "there cannot be any"],
)
def test_else_nothing_is_said_of_them(changes):
    assert "other machines" not in verdict(COMPUTES, **DEAR | changes).text


@pytest.mark.parametrize(
    "pipeline",
    [
        Pipeline(2, 16, always(0.1), always(0.02), cpus=2, computing=0.1),
        Pipeline(2, 16, always(0.1), always(0.02), cpus=8, computing=1.0),
        Pipeline(2, 16, always(0.1), always(0.2), cpus=2, computing=1.0),
    ],
    ids=["tasks wait", "there are CPUs here", "the trainer is the limit"],
)
def test_nor_where_something_nearer_would_help(pipeline):
    assert "other machines" not in verdict(pipeline, **DEAR).text
