"""All cases, group by group."""

from __future__ import annotations

from tests.compatibility import (
    arguments,
    batches,
    collating,
    datasets,
    errors,
    holding,
    iterables,
    iteration,
    library_errors,
    orders,
    processes,
    refusals,
    samplers,
    uses,
    warned,
)
from tests.compatibility.case import CASES, GROUPS, Case

__all__ = [
    "ALL_CASES",
    "arguments",
    "batches",
    "collating",
    "datasets",
    "errors",
    "holding",
    "iterables",
    "iteration",
    "library_errors",
    "orders",
    "processes",
    "refusals",
    "samplers",
    "uses",
    "warned",
]

ALL_CASES: list[Case] = sorted(CASES.values(), key=lambda case: GROUPS.index(case.group))
