"""Compare a program's outcome with DataLoader's. Each accepted difference is one of RULES."""

from __future__ import annotations

from typing import Any

from tests.fuzz.parts import BASE, LENGTH
from tests.fuzz.programs import Program

RULES = {
    "order": "shuffle=True without a generator gives an order of the loader's own: the same samples, in other batches",
    "random": "random samples have other numbers: as many different ones, and the same in each run",
    "race": "where two runs of DataLoader differ from each other, only what they have in common is compared",
    "resumed": "a loader that resumes has another process: what it has counted before is not compared",
}
"""The accepted differences, by name. docs/compatibility.md has each of them."""


def difference(what: Program, theirs: list[Any], again: list[Any], ours: list[Any]) -> str:
    """Return how `ours` differs from DataLoader's outcomes of two runs; empty if it does not."""
    if len(ours) != len(theirs):
        return f"{len(ours)} outcomes, DataLoader has {len(theirs)}"
    for number, (their, other, mine) in enumerate(zip(theirs, again, ours)):
        if _reduced(what, their) != _reduced(what, other):
            # Rule "race".
            continue
        if _reduced(what, mine) != _reduced(what, their):
            return f"outcome {number}: {mine}, DataLoader's is {their}"
    return ""


def _reduced(what: Program, outcome: Any) -> Any:
    """Return what of an outcome is compared by the rules."""
    if isinstance(outcome, tuple):
        name, told = outcome
        if what.how == "resumed" and what.part in COUNTING:
            return name
        if what.order == "shuffle" and isinstance(told, list):
            return name, sorted(told)
        return outcome
    numbers, others = _flat(outcome)
    if what.part in ("GlobalDraws", "NumpyDraws", "PythonDraws", "HeldDraws"):
        numbers = [number % BASE for number in numbers]
    if what.how == "resumed" and what.part in COUNTING:
        numbers = [number % BASE for number in numbers]
    if what.order == "shuffle" and (others or len(numbers) < LENGTH):
        # Which samples come first is the order's affair.
        return len(numbers), sorted(number // BASE for number in numbers), others
    if what.order == "shuffle":
        return sorted(number % BASE for number in numbers), sorted(number // BASE for number in numbers), others
    return outcome if what.part not in COUNTING | RANDOM else (numbers, others)


COUNTING = {
    "Counter",
    "ClassCounter",
    "GlobalCounter",
    "SharedCounter",
    "Cache",
    "Sobol",
    "Gathered",
    "PassesStream",
    "Seen",
}
RANDOM = {"GlobalDraws", "NumpyDraws", "PythonDraws", "HeldDraws"}


def _flat(outcome: Any) -> tuple[list[int], list[str]]:
    numbers: list[int] = []
    others: list[str] = []
    for batch in outcome:
        if isinstance(batch, str):
            others.append(batch)
        elif isinstance(batch, list):
            numbers += batch
        else:
            numbers.append(batch)
    return numbers, others
