"""Compare a program's outcome with DataLoader's. Each accepted difference is one of RULES."""

from __future__ import annotations

from typing import Any

from tests.fuzz.parts import BASE, LENGTH
from tests.fuzz.programs import Program

RULES = {
    "order": "shuffle=True without a generator gives an order of the loader's own: the same samples, in other batches",
    "random": "random samples have other numbers, which are the same in each run",
    "race": "where two runs of DataLoader differ from each other, the outcome is not compared",
    "resumed": "a loader that resumes begins with the program as it is then: what was counted before is not compared",
    "together": "two iterators of one loader with a generator draw their base seeds as each begins, and not at iter()",
    "cache": "with workers, entries of a cache that depend on those before them are each worker's own",
    "written": "without workers DataLoader sees at once that the loop has written a file; here the next epoch does",
    "left": (
        "with persistent workers, an iterable dataset that keeps its place begins anew after an epoch that was left; "
        "DataLoader's goes on behind what its workers had fetched"
    ),
    "files": "where DataLoader's workers read wrong rows through a file that they share, ours are right",
}
"""The accepted differences, by name. docs/compatibility.md has each of them."""

WRONG_ROW = -1
RANDOM = {"GlobalDraws", "NumpyDraws", "PythonDraws", "HeldDraws"}
COUNTING = {
    "Counter", "ClassCounter", "GlobalCounter", "SharedCounter", "Cache", "Sobol", "Gathered", "PassesStream", "Seen"
}  # fmt: skip


def difference(what: Program, theirs: list[Any], again: list[Any], ours: list[Any]) -> str:
    """Return how `ours` differs from DataLoader's outcomes of two runs; empty if it does not."""
    if len(ours) != len(theirs):
        return f"{len(ours)} outcomes, DataLoader has {len(theirs)}"
    for number, (their, other, mine) in enumerate(zip(theirs, again, ours)):
        if WRONG_ROW in _numbers(mine):
            return f"outcome {number}: {mine} has wrong rows"
        if WRONG_ROW in _numbers(their) or _reduced(what, their) != _reduced(what, other):
            # Rules "files" and "race".
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
        return (name, sorted(told)) if what.order == "shuffle" and isinstance(told, list) else outcome
    batches = [each for each in outcome if not isinstance(each, str)]
    others = [each for each in outcome if isinstance(each, str)]
    counts: list[int] = []
    if what.collate == "collator":
        counts, batches = [each[0] for each in batches], [each[1:] for each in batches]
    samples = [number for each in batches for number in (each if isinstance(each, list) else [each])]
    states, indices = [number // BASE for number in samples], [number % BASE for number in samples]
    if what.part in RANDOM:
        states = []
    leaves = any(each.breaks or each.raises for each in what.epochs)
    if what.workers and (what.part == "Cache" or (what.part == "SharedCounter" and leaves)):
        # Rules "cache" and "race": workers of DataLoader go on after the loop has left.
        states = []
    if what.how == "resumed":
        counts = []
        states = [] if what.part in COUNTING else states
    if what.order == "shuffle" or (what.order == "generator" and what.how == "together"):
        # Of an epoch that is left early, which samples come first is the order's affair.
        is_whole = len(samples) == LENGTH
        return sorted(indices) if is_whole else len(indices), sorted(states), counts, others
    sizes = [len(each) if isinstance(each, list) else 0 for each in batches]
    return indices, states, sizes, counts, others


def _numbers(outcome: Any) -> list[Any]:
    if isinstance(outcome, tuple):
        return []
    return [number for each in outcome for number in (each if isinstance(each, list) else [each])]
