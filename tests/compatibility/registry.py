"""All cases, group by group."""

from __future__ import annotations

from tests.compatibility import arguments, batches, datasets, errors, iterables, iteration, orders
from tests.compatibility.case import CASES, GROUPS, Case

__all__ = ["ALL_CASES", "arguments", "batches", "datasets", "errors", "iterables", "iteration", "orders"]

ALL_CASES: list[Case] = sorted(CASES.values(), key=lambda case: GROUPS.index(case.group))
